"""Registering accelerators and strategies with Lightning, once both Lightning and portico are imported.

Lightning has no entry points for them, and importing portico must not import Lightning, so they are registered when
Lightning is imported, whichever comes first.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from portico.errors import naming_the_extra

_LIGHTNING = "lightning.pytorch"


def register_with_lightning(accelerators: Mapping[str, str], strategies: Mapping[str, str]) -> None:
    """Register classes, given as ``"module:class"`` by name, now or when Lightning is imported."""

    def register() -> None:
        registries = (
            (import_module(f"{_LIGHTNING}.accelerators").AcceleratorRegistry, accelerators),
            (import_module(f"{_LIGHTNING}.strategies").StrategyRegistry, strategies),
        )
        for registry, classes in registries:
            for name, home in classes.items():
                registry.register(
                    name, _Maker(home), description=f"{home.partition(':')[2]} of portico", override=True
                )

    when_imported(_LIGHTNING, register)


def when_imported(package: str, action: Callable[[], None]) -> None:
    """Call ``action`` once the package is imported, which may be now."""
    if package in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _ImportWatcher(package, action))


class _Maker:
    """Lazy factory: imports the class on first call, since its module may be importing Lightning right now."""

    def __init__(self, home: str) -> None:
        self._module, _, self._class_name = home.partition(":")

    def __call__(self, **params: Any) -> Any:
        return self._class()(**params)

    def is_available(self) -> bool:
        # Lightning lists the accelerators that are available.
        return bool(self._class().is_available())

    def _class(self) -> Any:
        with naming_the_extra(f"`{self._class_name}`"):
            return getattr(import_module(self._module), self._class_name)


class _ImportWatcher(importlib.abc.MetaPathFinder):
    """Calls ``action`` once, after ``package`` has been imported."""

    def __init__(self, package: str, action: Callable[[], None]) -> None:
        self._package = package
        self._action = action
        self._is_searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._package or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(self._execute, spec.loader)  # type: ignore[method-assign]
        return spec

    def _execute(self, loader: importlib.abc.Loader, module: ModuleType) -> None:
        del loader.exec_module  # that of its class is next
        loader.exec_module(module)
        # Not before: libraries also look for the package only to see whether it is installed.
        sys.meta_path.remove(self)
        self._action()
