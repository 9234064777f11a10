"""The exceptions that `poptorch` raises."""


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
