"""Put portico's trainer in the place of transformers', under every name that a script or a library imports it by.

:func:`install` does so now, :func:`install_on_demand` once a program asks for one of the names: a script first sets
its environment up, and a process that trains nothing imports nothing. The classes of portico are named as strings,
since their modules use this one.
"""

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module, metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from portico.errors import InputError
from portico.registration import when_imported

# The module that defines each class in transformers, and the one here.
REPLACED = {
    "Trainer": ("transformers.trainer", "portico.trainer"),
    "TrainingArguments": ("transformers.training_args", "portico.arguments"),
    "Seq2SeqTrainer": ("transformers.trainer_seq2seq", "portico.seq2seq"),
    "Seq2SeqTrainingArguments": ("transformers.training_args_seq2seq", "portico.seq2seq"),
    "HfArgumentParser": ("transformers.hf_argparser", "portico.deprecated"),
}
# Processes that a run starts find its options here.
VARIABLE = "PORTICO_RUN"
# What must be complete before names are replaced; each imports another of them, and may ask for a name too early.
_PACKAGES = ("portico", "transformers", "lightning", "torchmetrics", "accelerate", "peft", "datasets")


@dataclass(frozen=True)
class RunOptions:
    """What `install` adds to each trainer of a script; the first six are fields of `TrainingArguments`.

    Args:
        callbacks: Callbacks of transformers or Lightning: objects, or `package.Class` to make one without arguments.
        loggers: Lightning loggers: objects, `package.Class`, or "csv" or "tensorboard" for one in `output_dir`.
    """

    accelerator: str | None = None
    strategy: str | None = None
    devices: int | str | None = None
    num_nodes: int | None = None
    precision: str | None = None
    corrections: str | None = None
    callbacks: Sequence[Any] = ()
    loggers: Sequence[Any] = ()

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, (), [])}

    def fill(self, args: Any) -> None:
        """Set the fields of training arguments that the script leaves unset."""
        for one in fields(self)[:6]:
            if getattr(self, one.name) is not None and getattr(args, one.name) is None:
                setattr(args, one.name, getattr(self, one.name))

    def make_callbacks(self) -> list[Any]:
        return [_made(one) for one in self.callbacks]

    def make_loggers(self, output_dir: str) -> list[Any]:
        """Return the loggers of one trainer."""
        return [
            _LIGHTNING_LOGGERS[one](output_dir) if one in _LIGHTNING_LOGGERS else _made(one) for one in self.loggers
        ]


def _csv_logger(folder: str) -> Any:
    return import_module("lightning.pytorch.loggers").CSVLogger(folder, name="csv")


def _tensorboard_logger(folder: str) -> Any:
    return import_module("lightning.pytorch.loggers").TensorBoardLogger(folder, name="tensorboard")


_LIGHTNING_LOGGERS = {"csv": _csv_logger, "tensorboard": _tensorboard_logger}


def imported(path: str) -> Any:
    """Return what `package.module.Name` names."""
    module, _, name = path.rpartition(".")
    if not module:
        raise InputError(
            f"'{path}' is unknown; give package.module.Class, or one of the loggers {', '.join(_LIGHTNING_LOGGERS)}."
        )
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"'{path}' cannot be imported ({error}); give package.module.Class of something that Python finds."
        ) from error


def check_part(part: str) -> None:
    """Raise an `InputError` if no callback or logger has this name."""
    if part not in _LIGHTNING_LOGGERS:
        imported(part)


def _made(part: Any) -> Any:
    found = imported(part) if isinstance(part, str) else part
    return found() if isinstance(found, type) else found


_options = RunOptions()
_originals: dict[str, type] = {}
_watcher: "_Watcher | None" = None
_watched: list[ModuleType] = []
_actions: list[Callable[[], None]] = []


def options() -> RunOptions:
    """Return what is added to each trainer; nothing unless installed with options."""
    return _options


def install(**given: Any) -> None:
    """Replace ``Trainer``, ``TrainingArguments`` and their ``Seq2Seq`` variants of transformers by portico's.

    Libraries imported from now on subclass portico's classes. A warning names what holds the old ones already.
    Calling it again changes the options.

    Args:
        **given: Options of each trainer that is made: `accelerator`, `strategy`, `devices`, `num_nodes`, `precision`
            and `corrections` as in `TrainingArguments`, for those that a script leaves unset; `callbacks` of either
            library and Lightning `loggers`, in lists, as objects or as `"package.Class"`.

    Raises:
        InputError: If an option is unknown.
    """
    _set_options(given)
    _replace()
    holders = _holders_of_originals()
    if holders:
        warnings.warn(
            f"The trainer of transformers is still held by {', '.join(holders[:8])}"
            f"{f' and {len(holders) - 8} more' if len(holders) > 8 else ''}; import "
            "them again after `portico.install()`, in a notebook after a restart of its kernel.",
            stacklevel=2,
        )


def uninstall() -> None:
    """Restore the classes of transformers; what was imported in between keeps portico's."""
    global _options, _watcher
    _set_names(_originals)
    _originals.clear()
    _options = RunOptions()
    os.environ.pop(VARIABLE, None)
    if _watcher is not None:
        _watcher.stop()
        _watcher = None


def install_on_demand(**given: Any) -> None:
    """Call :func:`install` when one of the names is first asked for, here and in the processes started from here."""
    global _watcher
    _set_options(given)
    os.environ[VARIABLE] = json.dumps(_options.given)
    if _watcher is None:
        _watcher = _Watcher()


def original(name: str) -> Any:
    """Return the class of transformers, replaced or not."""
    return _originals.get(name) or getattr(import_module("transformers"), name)


def when_replaced(action: Callable[[], None]) -> None:
    """Call ``action`` once the names are replaced, which may be now."""
    if _originals:
        action()
    else:
        _actions.append(action)


def is_installed() -> bool:
    return bool(_originals)


def summary() -> str:
    """Return in one line what replaces what, and the options."""
    names = ", ".join(name for name in REPLACED if name != "HfArgumentParser")
    added = "".join(f", {name}={value}" for name, value in _options.given.items())
    return f"replaces {names} of transformers {metadata.version('transformers')}{added}"


def _set_options(given: dict[str, Any]) -> None:
    global _options
    known = [one.name for one in fields(RunOptions)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError(f"`{unknown[0]}` is not an option of `portico.install`; it takes {', '.join(known)}.")
    _options = RunOptions(**given)


def _replace() -> None:
    if _originals:
        return
    # All originals before any of ours: the seq2seq classes of transformers are made from the others.
    found = {name: getattr(import_module(theirs), name) for name, (theirs, _) in REPLACED.items()}
    ours = {name: _ours(name) for name in REPLACED}
    _originals.update(found)
    _set_names(ours)
    while _actions:
        _actions.pop(0)()


def _ours(name: str) -> Any:
    return getattr(import_module(REPLACED[name][1]), name)


def _set_names(classes: Mapping[str, Any]) -> None:
    for name, value in classes.items():
        for module in (import_module(REPLACED[name][0]), *_packages()):
            setattr(module, name, value)


def _packages() -> list[ModuleType]:
    """Return the package transformers, which makes itself anew while it loads, and its earlier selves still in use."""
    # `isinstance` would ask objects of torch that warn when they are asked for anything.
    modules = [one for one in gc.get_objects() if issubclass(type(one), ModuleType)]
    return [one for one in modules if vars(one).get("__name__") == "transformers"]


def _holders_of_originals() -> list[str]:
    """Return the names by which other modules know the originals, and the classes made from them there."""
    originals = tuple(_originals.values())
    found = []
    # Once each: Python knows `__main__` by two names.
    for module_name, module in {id(one): (name, one) for name, one in reversed(list(sys.modules.items()))}.values():
        if module_name.partition(".")[0] in ("transformers", "portico") or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if not issubclass(type(value), type) or not issubclass(value, originals):
                continue
            if value in originals or (value.__module__ == module_name and not _is_ours(value)):
                found.append(f"{module_name}.{name}")
    return sorted(found)


def _is_ours(kind: type) -> bool:
    return any(base.__module__.startswith("portico.") for base in kind.__mro__)


class _Watcher(MetaPathFinder):
    """Installs when a program asks ``transformers``, or a module that defines one of the classes, for a name."""

    def __init__(self) -> None:
        self._is_busy = False
        sys.meta_path.insert(0, self)
        when_imported("transformers", self._watch_names)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.startswith("transformers."):
            self._watch_names()
        if fullname in (theirs for theirs, _ in REPLACED.values()) and self.replaced():
            module = sys.modules[fullname]
            # Of a module that a finder has imported, the import system takes the spec it finds there.
            module.__spec__ = spec_from_loader(fullname, _Loaded(module))
            return module.__spec__
        return None

    def replaced(self) -> bool:
        """Replace the names, unless it is a package of those needed that asks while it is being imported."""
        if self._is_busy or any(_is_incomplete(name) for name in _PACKAGES):
            return False
        if not is_installed():
            self._is_busy = True
            try:
                _replace()
            finally:
                self._is_busy = False
        return True

    def stop(self) -> None:
        sys.meta_path.remove(self)
        while _watched:
            package = _watched.pop()
            package.__class__ = type(package).__bases__[1]

    def _watch_names(self) -> None:
        package = sys.modules["transformers"]
        if isinstance(package, _Asked) or type(package) is ModuleType:  # it is still to make itself lazy
            return
        package.__class__ = type("_AskedPackage", (_Asked, type(package)), {"_watcher": self})
        _watched.append(package)


class _Asked(ModuleType):
    """The package transformers, which tells the watcher of the names that it is asked for."""

    _watcher: _Watcher

    def __getattr__(self, name: str) -> Any:
        if name not in REPLACED:
            return super().__getattr__(name)
        if not type(self)._watcher.replaced():
            value = super().__getattr__(name)
            # It would be found without asking from now on.
            vars(self).pop(name, None)
            return value
        vars(self)[name] = _ours(name)
        return _ours(name)


class _Loaded(Loader):
    """Gives the import system a module that is loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _is_incomplete(package: str) -> bool:
    """Return whether a package or a module of it is being imported."""
    return any(
        getattr(getattr(module, "__spec__", None), "_initializing", False)
        for name, module in list(sys.modules.items())
        if name == package or name.startswith(f"{package}.")
    )
