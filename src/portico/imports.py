"""Exports of a package that import their modules on first use."""

import ast
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from portico.errors import naming_the_extra


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package, read from the stub next to its ``__init__``.

    Type checkers read the stub, so each name is written once. Scientific Python's lazy_loader does the same, but its
    ``AttributeError`` does not list the names that exist.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        with naming_the_extra(f"`{package}.{name}`"), garbage_collection_paused():
            return getattr(import_module(str(homes[name])), name)

    return get, lambda: names, names


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Import or trace without searching for garbage: neither makes much, and the search takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
