"""Replace transformers' trainer with portico's, under every name that a script or a library imports it by.

:func:`install` replaces it now, :func:`install_on_demand` once a program asks for one of the names, so that a script
can set up its environment first, and a process that trains nothing imports nothing.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from importlib import metadata
from types import ModuleType
from typing import Any

from portico.errors import InputError
from portico.imports import import_name, when_imported
from portico.observers import RUN_VARIABLE, RunOptions, options, set_options

REPLACED = {
    "Trainer": ("transformers.trainer", "portico.trainer"),
    "TrainingArguments": ("transformers.training_args", "portico.arguments"),
    "Seq2SeqTrainer": ("transformers.trainer_seq2seq", "portico.seq2seq"),
    "Seq2SeqTrainingArguments": ("transformers.training_args_seq2seq", "portico.seq2seq"),
    "HfArgumentParser": ("transformers.hf_argparser", "portico.deprecated"),
}
"""The module that defines each class in transformers, and the one here."""
# What must be complete before names are replaced: each imports another of them, and may ask for a name too early.
_PACKAGES = ("portico", "transformers", "lightning", "torchmetrics", "accelerate", "peft", "datasets")
# The modules after whose import there is a package object to watch: `processing_utils` of transformers 5.23 imports
# the package a second time, as another object, and what was imported before keeps the first.
_MAKES_THE_PACKAGE = ("transformers", "transformers.processing_utils")

_originals: dict[str, type] = {}
_actions: list[Callable[[], None]] = []
_is_on_demand = False


def install(**given: object) -> None:
    """Replace ``Trainer``, ``TrainingArguments`` and their ``Seq2Seq`` variants of transformers by portico's.

    Libraries imported from now on subclass portico's classes. A warning lists what already holds the old classes.
    Calling it again changes the options.

    Args:
        **given: Options of each trainer that is made: ``accelerator``, ``strategy``, ``devices``, ``num_nodes``,
            ``precision`` and ``corrections`` as in ``TrainingArguments``, for those that a script leaves unset;
            ``callbacks`` of either library and Lightning ``loggers``, in lists, as objects or as ``"package.Class"``.

    Raises:
        InputError: If an option is unknown.
    """
    _set_options(given)
    _replace()
    holders = _holders_of_originals()
    if holders:
        others = f" and {len(holders) - 8} more" if len(holders) > 8 else ""
        warnings.warn(
            f"The trainer of transformers is still held by {', '.join(holders[:8])}{others}; import them again after "
            "`portico.install()`, in a notebook after a restart of its kernel.",
            stacklevel=2,
        )


def uninstall() -> None:
    """Restore the classes of transformers; what was imported in between keeps portico's."""
    global _is_on_demand
    _set_names(_originals)
    _originals.clear()
    set_options(RunOptions())
    os.environ.pop(RUN_VARIABLE, None)
    _is_on_demand = False
    for package in _packages():
        vars(package).pop("__getattr__", None)


def install_on_demand(**given: object) -> None:
    """Call :func:`install` when one of the names is first asked for, here and in the processes started from here."""
    global _is_on_demand
    _set_options(given)
    os.environ[RUN_VARIABLE] = json.dumps(options().given)
    if not (_is_on_demand or _originals):
        _is_on_demand = True
        for module in _MAKES_THE_PACKAGE:
            when_imported(module, _watch_package)
        for module, _ in REPLACED.values():
            when_imported(module, partial(_replace_if_complete, module))


def original(name: str) -> Any:
    """Return the class of transformers, replaced or not."""
    return _originals.get(name) or import_name("transformers", name)


def when_replaced(action: Callable[[], None]) -> None:
    """Call ``action`` once the names are replaced, which may be now."""
    if _originals:
        action()
    else:
        _actions.append(action)


def summary() -> str:
    """Return in one line what replaces what, and the options."""
    names = ", ".join(name for name in REPLACED if name != "HfArgumentParser")
    added = "".join(f", {name}={value}" for name, value in options().given.items())
    return f"replaces {names} of transformers {metadata.version('transformers')}{added}"


def _set_options(given: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(RunOptions)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError(f"`{unknown[0]}` is not an option of `portico.install`; it takes {', '.join(known)}.")
    changed = RunOptions(**given)
    if _originals:
        _check_options(changed)
    set_options(changed)


def _check_options(changed: RunOptions) -> None:
    import_name("portico.loop.validation", "check_run_options")(changed)


# ---- The names ----


def _replace() -> None:
    if _originals:
        return
    # Only now, since a script sets up its environment before it imports what these checks import.
    _check_options(options())
    # All originals before any of ours: the seq2seq classes of transformers are made from the others.
    found = {name: import_name(theirs, name) for name, (theirs, _) in REPLACED.items()}
    ours = {name: import_name(home, name) for name, (_, home) in REPLACED.items()}
    _originals.update(found)
    _set_names(ours)
    while _actions:
        _actions.pop(0)()


def _set_names(classes: Mapping[str, type]) -> None:
    packages = _packages()
    for name, value in classes.items():
        for module in (sys.modules[REPLACED[name][0]], *packages):
            setattr(module, name, value)


def _packages() -> list[ModuleType]:
    """Return the package transformers as each module knows it: it may have been imported twice."""
    known = {id(package): package for package in (sys.modules.get("transformers"),) if package is not None}
    for _, value in _globals():
        # `isinstance` would ask objects of torch that warn when they are asked for anything.
        if issubclass(type(value), ModuleType) and vars(value).get("__name__") == "transformers":
            known[id(value)] = value
    return list(known.values())


def _holders_of_originals() -> list[str]:
    """Return the names by which other modules know the originals, and the classes made from them there."""
    originals = tuple(_originals.values())
    found = set()
    for place, value in _globals():
        module_name = place.rpartition(".")[0]
        if module_name.partition(".")[0] in ("transformers", "portico") or not issubclass(type(value), type):
            continue
        if value in originals or (
            issubclass(value, originals) and value.__module__ == module_name and not _is_ours(value)
        ):
            found.add(place)
    return sorted(found)


def _globals() -> list[tuple[str, Any]]:
    """Return what the modules hold, each value as ``module.name``."""
    # Once each, since Python knows `__main__` by two names.
    modules = {id(module): (name, module) for name, module in reversed(list(sys.modules.items()))}
    return [
        (f"{module_name}.{name}", value)
        for module_name, module in modules.values()
        if isinstance(module, ModuleType)
        for name, value in list(vars(module).items())
    ]


def _is_ours(kind: type) -> bool:
    return any(base.__module__.startswith("portico.") for base in kind.__mro__)


# ---- On demand ----


def _watch_package() -> None:
    """Make the package transformers look the names up here first, instead of in its modules."""
    if _is_on_demand:
        vars(sys.modules["transformers"])["__getattr__"] = _asked


def _asked(name: str) -> Any:
    """Return the class for a name of the package; what is not replaced is left to the package's class."""
    if name not in REPLACED:
        raise AttributeError(name)
    _replace_if_complete()
    # Also while it is too early: the package would keep the class that it finds itself, and not ask again.
    return import_name(REPLACED[name][0], name)


def _replace_if_complete(executed: str = "") -> None:
    """Replace the names, unless a package that is needed asks while it is being imported.

    ``executed`` is a module that is complete although its import has not returned.
    """
    global _is_on_demand
    if _is_on_demand and not any(_is_incomplete(name, executed) for name in _PACKAGES):
        _is_on_demand = False  # neither again, nor for what the classes of portico import
        _replace()


def _is_incomplete(package: str, executed: str) -> bool:
    """Return whether a package or a module of it is being imported."""
    return any(
        getattr(getattr(module, "__spec__", None), "_initializing", False)
        for name, module in list(sys.modules.items())
        if name != executed and (name == package or name.startswith(f"{package}."))
    )
