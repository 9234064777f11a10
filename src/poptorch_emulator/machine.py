"""The version of `poptorch` that is emulated."""

import itertools
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from poptorch_emulator.errors import Error

VERSION = "3.4.0+emulated"


MOST_IPUS = 64


@dataclass
class EmulatorSettings:
    """The emulated machine.

    Args:
        num_ipus: IPUs of the machine, 64 at most; programs that are attached hold theirs.
        strict: Refuse models whose shapes or branches depend on data, by a trace without data at compilation.
        keeps_float64: Compute doubles as doubles, where a device has single precision; for numeric proofs.
        seed: Seed of devices whose options name none.
    """

    num_ipus: int = MOST_IPUS
    strict: bool = False
    keeps_float64: bool = False
    seed: int = 42


settings = EmulatorSettings()


@contextmanager
def configured(**changes: Any) -> Iterator[EmulatorSettings]:
    """Change the emulated machine for a while.

    Args:
        **changes: Fields of :class:`EmulatorSettings`.

    Raises:
        TypeError: If a field does not exist.
    """
    before = replace(settings)
    replace(settings, **changes)  # refuses unknown fields
    try:
        for name, value in changes.items():
            setattr(settings, name, value)
        yield settings
    finally:
        for field in fields(EmulatorSettings):
            setattr(settings, field.name, getattr(before, field.name))


class DevicePool:
    """Hands out IPUs, and takes them back."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._holders = itertools.count()

    def new_holder(self) -> int:
        """Return a name for a program, unlike every other."""
        return next(self._holders)

    @property
    def num_free(self) -> int:
        """IPUs that no program holds."""
        return settings.num_ipus - sum(self._held.values())

    def acquire(self, holder: int, num_ipus: int) -> None:
        """Give ``num_ipus`` IPUs to a program.

        Args:
            holder: Name of the program, of :meth:`new_holder`.
            num_ipus: IPUs of all its replicas.

        Raises:
            Error: If fewer are free.
        """
        if num_ipus > self.num_free:
            raise Error(
                f"Failed to acquire {num_ipus} IPU(s): the machine has {settings.num_ipus}, of which "
                f"{self.num_free} are free; detach another program with `detachFromDevice()`, or use fewer IPUs."
            )
        self._held[holder] = num_ipus

    def release(self, holder: int) -> None:
        """Take the IPUs of a program back."""
        self._held.pop(holder, None)


pool = DevicePool()


class Hold:
    """The IPUs that one program holds, which are free again when it is forgotten.

    Attributes:
        is_held: Whether it holds any.
    """

    def __init__(self) -> None:
        self._holder = pool.new_holder()
        self.is_held = False
        weakref.finalize(self, pool.release, self._holder)

    def acquire(self, num_ipus: int) -> None:
        """Take IPUs.

        Raises:
            Error: If fewer are free.
        """
        pool.acquire(self._holder, num_ipus)
        self.is_held = True

    def release(self) -> None:
        """Give them back."""
        pool.release(self._holder)
        self.is_held = False


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


_num_running = 0


@contextmanager
def running() -> Iterator[None]:
    """Compile or run a program."""
    global _num_running
    _num_running += 1
    try:
        yield
    finally:
        _num_running -= 1


def isRunningOnIpu() -> bool:
    """Tell whether the caller is part of a program, and not of a model on the host."""
    return _num_running > 0
