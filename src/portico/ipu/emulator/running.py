"""Whether a program is compiled or run at this moment."""

from collections.abc import Iterator
from contextlib import contextmanager

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
    """Return whether the caller is part of a program, and not of a model on the host."""
    return _num_running > 0
