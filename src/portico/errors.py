"""Errors in the user's input, each also of the type that ``transformers`` or PrimeQA raise at the same place."""


class InputError(ValueError):
    """Input that cannot be used.

    The message is one paragraph: what was received, what is allowed and what to set. The command line prints it
    without a traceback.
    """


class InputRuntimeError(InputError, RuntimeError):
    """An :class:`InputError` where ``transformers`` raises ``RuntimeError``; scripts may catch either."""


class InputTypeError(InputError, TypeError):
    """An :class:`InputError` where ``transformers`` raises ``TypeError``; scripts may catch either."""


class InputKeyError(InputError, KeyError):
    """An :class:`InputError` where ``transformers`` raises ``KeyError``; scripts may catch either."""

    # `KeyError` shows its message as a quoted key.
    __str__ = ValueError.__str__


class InputStopIteration(InputError, StopIteration):
    """An :class:`InputError` where PrimeQA raises ``StopIteration``; scripts may catch either."""


class MissingPackageError(InputError, ImportError):
    """A setting needs a package that is not installed."""
