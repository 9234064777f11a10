"""Functions that are called before and after every compilation, and attributes and names of operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from portico.ipu.emulator.options.group import require_type

_before: list[Callable[[], None]] = []
_after: list[Callable[[], None]] = []


class HookHandle:
    """Takes a registered function away again.

    Args:
        hooks: Where it is registered.
        hook: The function.
    """

    def __init__(self, hooks: list[Callable[[], None]], hook: Callable[[], None]) -> None:
        self._hooks = hooks
        self._hook = hook
        hooks.append(hook)

    def remove(self) -> None:
        """Call the function no more."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


def registerPreCompileHook(hook: Callable[[], None]) -> HookHandle:
    """Call ``hook`` before every compilation."""
    return HookHandle(_before, hook)


def registerPostCompileHook(hook: Callable[[], None]) -> HookHandle:
    """Call ``hook`` after every compilation."""
    return HookHandle(_after, hook)


@contextmanager
def compiling() -> Iterator[None]:
    """Call the registered functions around a compilation."""
    for hook in list(_before):
        hook()
    yield
    for hook in list(_after):
        hook()


class Attribute:
    """Sets attributes of the operations inside, for the compiler; nothing here depends on them.

    Args:
        **attributes: By name.
    """

    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes

    def __enter__(self) -> "Attribute":
        return self

    def __exit__(self, *exception: Any) -> None:
        """Leave the operations."""


class NameScope:
    """Names the operations inside, for profiles; nothing here depends on it.

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        require_type(name, str, "NameScope")
        self.name = name

    def __enter__(self) -> "NameScope":
        return self

    def __exit__(self, *exception: Any) -> None:
        """Leave the operations."""
