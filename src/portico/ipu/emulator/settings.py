"""What the emulated machine is like; tests change it with :func:`configured`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

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
