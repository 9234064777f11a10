"""The emulator under the name `poptorch`, for tests."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_NAME = "poptorch"
_PACKAGE = __name__.rpartition(".")[0]
_SUBMODULES = ("optim", "enums", "options")


def install() -> ModuleType:
    """Put the emulator in the place of `poptorch`, and return it; for tests, never in a program for hardware."""
    emulator = sys.modules[_PACKAGE]
    sys.modules[_NAME] = emulator
    for name in _SUBMODULES:
        sys.modules[f"{_NAME}.{name}"] = sys.modules[f"{_PACKAGE}.{name}"]
    return emulator


def uninstall() -> None:
    """Take the emulator out of the place of `poptorch`."""
    for name in (_NAME, *(f"{_NAME}.{submodule}" for submodule in _SUBMODULES)):
        sys.modules.pop(name, None)


@contextmanager
def installed() -> Iterator[ModuleType]:
    """Put the emulator in the place of `poptorch` for a while."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == _NAME}
    try:
        yield install()
    finally:
        uninstall()
        sys.modules.update(before)
