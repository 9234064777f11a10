class InputError(ValueError):
    """What the user gave cannot be used.

    The message is one paragraph that says what came, what is allowed and what to set. The command line prints it
    without a traceback.
    """


class MissingPackageError(InputError, ImportError):
    """A setting needs a package that is not installed."""


class MissingMetricError(InputError, KeyError):
    """A setting names a metric that no evaluation gives."""

    # `KeyError` would show the paragraph in quotes.
    __str__ = Exception.__str__
