"""The error of a configuration, under AllenNLP's name."""

from portico.errors import InputError


class ConfigurationError(InputError):
    """A configuration, or the arguments of a trainer, cannot be used; the message says what to set."""
