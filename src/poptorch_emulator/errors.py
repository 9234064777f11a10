"""The exceptions that `poptorch` raises."""

from typing import Any


class Error(Exception):
    """A program that cannot be compiled or run.

    Args:
        message: What is wrong.

    Attributes:
        message: The same.
        type: Kind of failure, in one word.
        location: Where in the program it happened; empty when unknown.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.type = "poptorch_cpp_error"
        self.location = ""


class RecoverableError(Error):
    """A failure after which the same program can be run again.

    Attributes:
        recovery_action: What helps: ``"IPU_RESET"``, ``"PARTITION_RESET"`` or ``"FULL_RESET"``.
    """

    def __init__(self, message: str = "", recovery_action: str = "IPU_RESET") -> None:
        super().__init__(message)
        self.recovery_action = recovery_action


class UnrecoverableError(Error):
    """A failure of the machine that no reset helps against."""


class ConfigFileError(Error):
    """A file of options with a line that sets nothing."""


def require_count(value: Any, name: str) -> None:
    """Refuse anything but an int of at least 1, as ``poptorch`` does.

    Raises:
        AssertionError: Names the option and what came.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise AssertionError(f"{name} must be an integer greater than 0; {value!r} was given")


def require_type(value: Any, kinds: type | tuple[type, ...], name: str) -> None:
    """Refuse a value of another type, as ``poptorch`` does.

    Raises:
        AssertionError: Names the option, what came and what is allowed.
    """
    if not isinstance(value, kinds):
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        allowed = " or ".join(kind.__name__ for kind in kinds)
        raise AssertionError(f"{name} must be of type {allowed}; {value!r} is {type(value).__name__}")
