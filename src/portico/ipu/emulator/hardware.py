"""What there is of hardware: nothing."""

import logging

logger = logging.getLogger(__name__)

# An IPU Mk2, for which configurations are made.
_VERSION = 2


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Tell that there are no IPUs: what runs here is emulated."""
    return False


def ipuHardwareVersion() -> int:
    """Return the version of the emulated hardware: Mk2."""
    return _VERSION


def setLogLevel(level: str | int) -> None:
    """Set how much the emulator says.

    Args:
        level: ``"TRACE"``, ``"DEBUG"``, ``"INFO"``, ``"WARN"``, ``"ERR"`` or ``"OFF"``, or a number from 0 to 6.
    """
    names = ["TRACE", "DEBUG", "INFO", "WARN", "ERR", "CRITICAL", "OFF"]
    name = level if isinstance(level, str) else names[level]
    levels = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERR": 40, "CRITICAL": 50, "OFF": 60}
    logger.parent.setLevel(levels[name])  # type: ignore[union-attr]


def hasMLIRSupportOnPlatform() -> bool:
    """Tell that there is no MLIR compiler: nothing is compiled."""
    return False
