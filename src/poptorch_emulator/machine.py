"""The emulated machine: its settings, its IPUs and the programs that hold them, its answers to hardware queries."""

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from poptorch_emulator.errors import Error

# The release of `poptorch` whose behaviour is emulated.
VERSION = "3.4.0+emulated"
# As in a Pod64.
MAX_IPUS = 64


@dataclass
class EmulatorSettings:
    """The emulated machine.

    Args:
        num_ipus: IPUs of the machine, at most 64.
        strict: Refuse models whose shapes or branches depend on data, by tracing them without data at compilation.
        keeps_float64: Compute in double precision where a device would use single precision; for numeric proofs.
        seed: Seed of devices whose options set none.
    """

    num_ipus: int = MAX_IPUS
    strict: bool = False
    keeps_float64: bool = False
    seed: int = 42


settings = EmulatorSettings()


@contextmanager
def configured(**changes: Any) -> Iterator[EmulatorSettings]:
    """Change fields of :class:`EmulatorSettings` inside a ``with`` block."""
    before = asdict(settings)
    vars(settings).update(asdict(replace(settings, **changes)))
    try:
        yield settings
    finally:
        vars(settings).update(before)


# How many IPUs each program holds; one that is garbage collected releases them.
held_ipus: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()


def acquire_ipus(program: object, num_ipus: int) -> None:
    num_free = settings.num_ipus - sum(held_ipus.values())
    if num_ipus > num_free:
        raise Error(
            f"Failed to acquire {num_ipus} IPU(s): the machine has {settings.num_ipus}, of which {num_free} are free; "
            "detach another program with `detachFromDevice()`, or use fewer IPUs."
        )
    held_ipus[program] = num_ipus


_num_running = 0


@contextmanager
def running() -> Iterator[None]:
    """Mark the ``with`` block as part of a program that is compiled or run."""
    global _num_running
    _num_running += 1
    try:
        yield
    finally:
        _num_running -= 1


def isRunningOnIpu() -> bool:
    """Return whether the caller is part of a program, rather than of a model on the host."""
    return _num_running > 0


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return ``False``: the IPUs are emulated."""
    return False


def ipuHardwareVersion() -> int:
    """Return the version of the emulated hardware: 2, for Mk2."""
    return 2


def hasMLIRSupportOnPlatform() -> bool:
    """Return ``False``: the emulator has no MLIR compiler."""
    return False


def setLogLevel(level: str | int) -> None:
    """Set the log level of the emulator.

    Args:
        level: ``"TRACE"``, ``"DEBUG"``, ``"INFO"``, ``"WARN"``, ``"ERR"``, ``"CRITICAL"`` or ``"OFF"``, or its
            position in that list.
    """
    levels = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERR": 40, "CRITICAL": 50, "OFF": 60}
    logging.getLogger(__package__).setLevel(levels[level] if isinstance(level, str) else list(levels.values())[level])
