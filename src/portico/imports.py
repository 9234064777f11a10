"""Lazy imports, and actions that run when a module is imported."""

import ast
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from portico.errors import naming_the_extra


def import_name(module: str, name: str) -> Any:
    """Return the attribute ``name`` of a module, importing the module if necessary."""
    return getattr(import_module(module), name)


# ---- Exports of a package ----


def lazy_exports(
    package: str, file: str, *, neighbour: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package, read from the stub next to its ``__init__``.

    Type checkers read the stub, so each name is written once. Scientific Python's lazy_loader does the same, but its
    ``AttributeError`` does not list the names that exist. ``neighbour`` is a library whose other public names users
    also look for in the package: the error says where to import them from.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    names = sorted(homes)
    if neighbour is not None:
        sys.meta_path.append(_NeighbourFinder(package, neighbour))

    def get(name: str) -> object:
        if name not in homes:
            # `from package import module` asks for the attribute before it imports the module.
            is_module = PathFinder.find_spec(f"{package}.{name}", [str(Path(file).parent)]) is not None
            if neighbour is not None and not is_module and _is_public(neighbour, name):
                raise AttributeError(_sentence_on_neighbour(package, neighbour, name))
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        with naming_the_extra(f"`{package}.{name}`"):
            return import_name(str(homes[name]), name)

    return get, lambda: names, names


class _NeighbourFinder(importlib.abc.MetaPathFinder):
    """Explains ``from package import name`` for a public name of the neighbour, after all finders have failed.

    That statement replaces the ``AttributeError`` of the package with "cannot import name", but first looks for a
    submodule of this name.
    """

    def __init__(self, package: str, neighbour: str) -> None:
        self.package, self.neighbour = package, neighbour

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package == self.package and _is_public(self.neighbour, name):
            raise ImportError(_sentence_on_neighbour(package, self.neighbour, name), name=fullname)
        return None


def _is_public(library: str, name: str) -> bool:
    return not name.startswith("_") and name in dir(import_module(library))


def _sentence_on_neighbour(package: str, neighbour: str, name: str) -> str:
    return f"`{name}` is a name of {neighbour}, not of {package}; use `from {neighbour} import {name}`."


# ---- Actions after an import ----


def when_imported(module: str, action: Callable[[], None]) -> None:
    """Call ``action`` once, when the module is imported, or now if it already is."""
    if module in sys.modules:
        action()
        return
    _finder.actions.setdefault(module, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _WaitingFinder(importlib.abc.MetaPathFinder):
    """Finds awaited modules with the other finders, and runs their actions once the modules have been executed."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[], None]]] = {}
        self._searched: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.actions or fullname in self._searched:
            return None
        self._searched.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searched.remove(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(self._execute, spec.loader)  # type: ignore[method-assign]
        return spec

    def _execute(self, loader: importlib.abc.Loader, module: ModuleType) -> None:
        del loader.exec_module  # restores the method of the class
        loader.exec_module(module)
        # Not when it is found: libraries also look for a package only to see whether it is installed.
        for action in self.actions.pop(module.__name__, []):
            action()


_finder = _WaitingFinder()


# ---- Lightning's registries ----


def register_with_lightning(accelerators: Mapping[str, str], strategies: Mapping[str, str]) -> None:
    """Register classes, given as ``"module:class"`` by name, now or when Lightning is imported.

    Lightning has no entry points for them, and importing portico must not import Lightning.
    """

    def register() -> None:
        lightning = sys.modules["lightning.pytorch"]
        registries = (
            (lightning.accelerators.AcceleratorRegistry, accelerators),
            (lightning.strategies.StrategyRegistry, strategies),
        )
        for registry, classes in registries:
            for name, home in classes.items():
                description = f"{home.partition(':')[2]} of portico"
                registry.register(name, LazyClass(home), description=description, override=True)

    when_imported("lightning.pytorch", register)


class LazyClass:
    """A class, ``"module:class"``, imported on the first call, since its module may be importing Lightning now."""

    def __init__(self, home: str) -> None:
        self._module, _, self._class_name = home.partition(":")

    def __call__(self, **params: object) -> object:
        return self._class()(**params)

    def is_available(self) -> bool:
        # Lightning lists the accelerators that are available.
        return bool(self._class().is_available())

    def _class(self) -> Any:
        with naming_the_extra(f"`{self._class_name}`"):
            return import_name(self._module, self._class_name)
