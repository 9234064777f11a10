"""The exceptions of `poptorch`, and the checks of arguments that raise ``AssertionError`` as `poptorch` does."""

from typing import Any


class Error(Exception):
    """A program cannot be compiled or run.

    Attributes:
        message: The cause.
        type: Kind of failure, in one word.
        location: Where in the program it happened; empty if unknown.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.type = "poptorch_cpp_error"
        self.location = ""


class RecoverableError(Error):
    """A failure after which the same program can run again.

    Attributes:
        recovery_action: The remedy: ``"IPU_RESET"``, ``"PARTITION_RESET"`` or ``"FULL_RESET"``.
    """

    def __init__(self, message: str = "", recovery_action: str = "IPU_RESET") -> None:
        super().__init__(message)
        self.recovery_action = recovery_action


class UnrecoverableError(Error):
    """A failure of the machine that no reset repairs."""


class ConfigFileError(Error):
    """A file of options has a line that is not a valid setter call."""


def require_count(value: Any, name: str) -> None:
    """Raise ``AssertionError`` unless ``value``, of the argument or setter ``name``, is an int of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise AssertionError(f"{name} must be an integer greater than 0; {value!r} was given")


def require_type(value: Any, kinds: type | tuple[type, ...], name: str) -> None:
    """Raise ``AssertionError`` unless ``value``, of the argument or setter ``name``, is an instance of ``kinds``."""
    if not isinstance(value, kinds):
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        allowed = " or ".join(kind.__name__ for kind in kinds)
        raise AssertionError(f"{name} must be of type {allowed}; {value!r} is {type(value).__name__}")
