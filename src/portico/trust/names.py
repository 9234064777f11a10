"""Where names in data become classes; no other module imports what data name.

A configuration that the user composes may name anything that Python finds: that is its purpose. A folder may come from
somebody else: what its files name is built inside :func:`from_folder`, where only the classes registered by
:func:`data_only` exist and nothing is downloaded, unless the user trusts the folder.
"""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import has_magic
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from portico.errors import InputError, MissingPackageError, naming_the_extra, printable

TARGET = "_target_"
"""Key of a configuration that names the class to build."""
# Modules that do something when they are imported.
_COMMANDS = "portico.commands."

T = TypeVar("T", bound=type)
_data_only: dict[str, type] = {}


@dataclass(frozen=True)
class _Origin:
    """A file that names come from, what to do for one that is refused, and what the user lets it name elsewhere."""

    file: Path
    advice: str
    admitted: tuple[Path, ...] | None
    named: tuple[str | Path, ...] = ()
    typed: tuple[str, ...] = ()

    def allowing(self, places: Collection[Path]) -> str:
        """Return what admits places: the command that was typed, with its option, or the option alone."""
        options = [word for place in places for word in ("--allow-path", str(place))]
        if not self.typed:
            return shlex.join(options)
        # Ahead of all else, also of a `--`.
        return f"`{shlex.join([*self.typed[:2], *options, *self.typed[2:]])}`"

    def is_inside(self, path: str | Path) -> bool:
        """Return whether a path is in the folder of the file, or admitted."""
        places = [place.resolve() for place in self.admitted or ()]
        if "**" not in str(path):  # which follows links to wherever they lead
            places.append(self.file.parent.resolve())
        found = Path(path).resolve()
        return any(found.is_relative_to(place) for place in places)


# The files that names come from now. Not a context variable: threads begin without its value.
_files: list[_Origin] = []


# ---- What a folder may name ----


def data_only(kind: T, name: str | None = None) -> T:
    """Register a class that the configuration in a folder may name, and return it.

    Such a class, and what it does later, takes its arguments as data: it calls nothing that they name, loads no pickle
    and writes to no path among them.

    Args:
        kind: The class; this function is also its decorator.
        name: Dotted path of a class of another package, which is not imported for the sake of a folder.
    """
    _data_only[name or f"{kind.__module__}.{kind.__qualname__}"] = kind
    return kind


@contextmanager
def from_folder(
    file: Path,
    *,
    trusted: bool = False,
    advice: str = "if you trust the run, allow it with --trust-config",
    admitted: Sequence[Path] | None = (),
    named: Sequence[str | Path] = (),
    typed: Sequence[str] = (),
) -> Iterator[None]:
    """Inside the block, judge names in data as names in ``file``, whose folder may come from somebody else.

    Nothing is refused if the folder is ``trusted``; ``advice`` ends the sentences about what is refused. Paths in the
    folder may be read, and paths at or below those ``admitted``; ``None`` admits all. Once one is refused, so are all
    ``named``, so that the user sees in one sentence what the file wants to read. The words of the command, if they are
    given as ``typed``, are repeated there with what admits it.
    """
    if trusted:
        yield
        return
    _files.append(_Origin(file, advice, None if admitted is None else tuple(admitted), tuple(named), tuple(typed)))
    try:
        yield
    finally:
        _files.pop()


def refuse_in_folder(what: str, effect: str) -> None:
    """Raise an ``InputError`` if ``what``, a name or a setting with its value, comes from a folder."""
    if _files:
        origin = _files[-1]
        raise InputError(f"{origin.file} names {what}, which would be {effect}; {origin.advice}.")


def is_from_folder() -> bool:
    """Return whether names, and values of settings, come from a folder that is not trusted."""
    return bool(_files)


def refuse_outside(path: str | Path, setting: str | None = None) -> None:
    """Raise an ``InputError`` if a folder names a path, or a pattern of paths, that leads out of it.

    Its author would choose which files of this machine are opened, and with ``/usr/**`` how many.
    """
    origin = _files[-1] if _files else None
    if origin is None or origin.admitted is None:
        return
    if origin.is_inside(path):
        return
    named = f"`{setting}={path}`" if setting else str(path)
    outside = dict.fromkeys(str(other) for other in (path, *origin.named) if not origin.is_inside(other))
    others = "".join(f", and {other}" for other in outside if other != str(path))
    places = dict.fromkeys(_without_pattern(Path(other).absolute()) for other in outside)
    raise InputError(
        printable(
            f"{origin.file} names {named}{others}, which would be read from outside of its folder; if the run is to "
            f"read {'them' if others else 'it'}, allow it with {origin.allowing(places)}."
        )
    )


def _without_pattern(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if not has_magic(str(place)))


def refuse_download(setting: str, name: str) -> None:
    """Raise an ``InputError`` if a folder names a model elsewhere: its author would choose what is loaded."""
    if Path(name).exists():
        refuse_outside(name, setting)
    else:
        refuse_in_folder(f"`{setting}={name}`", "downloaded, or read from the cache of the hub")


# ---- From a name to an object ----


def resolved(path: str) -> Any:
    """Return what a dotted path in data names, importing its module.

    Raises:
        InputError: If the path comes from a folder and names something else than a class that takes data only.
        ImportError, AttributeError, ValueError: If there is no such thing.
    """
    module, _, name = path.rpartition(".")
    if _files:
        found = _data_only.get(path)
        if found is None and path.startswith("portico.") and not path.startswith(_COMMANDS) and "__" not in path:
            # By its public name, or registered when its module is imported.
            candidate = getattr(import_module(module), name)
            found = next((known for known in _data_only.values() if known is candidate), None)
        if found is None:
            refuse_in_folder(path, "imported and called")
        return found
    if "" in path.split("."):
        return resolve_name(path)  # raises a ValueError; for a relative name `import_module` raises a TypeError
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return resolve_name(path)  # inside a class


def import_target(name: str, path: object) -> Any:
    """Return the class or function at the dotted path under the key ``name``; ``path`` may already be one."""
    if callable(path):
        return path
    try:
        with naming_the_extra(f"`{name}={path}`"):
            target = resolved(str(path))
    except InputError:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"`{name}={path}` cannot be imported ({' '.join(str(error).split())}); set it to the dotted path of a "
            "class, such as my_package.my_module.MyClass, in the working folder or on PYTHONPATH."
        ) from error
    if not callable(target):
        raise InputError(f"`{name}={path}` is a {type(target).__name__}; set it to the dotted path of a class.")
    return target


def built(key: str, settings: object) -> Any:
    """Return settings with an object in place of each mapping that names its class, as Hydra builds them.

    Hydra resolves ``${...}`` in them, and refuses targets that execute what they are given.

    Args:
        key: Where the settings are, for messages.
        settings: Plain mappings, lists and scalars.

    Raises:
        MissingPackageError: If a class needs a package that is not installed.
        InputError: If a class cannot be imported or built.
    """
    if not isinstance(settings, Mapping | list):
        return settings
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    _judge(key, settings)
    try:
        return instantiate(settings, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from error
        if isinstance(error.__cause__, ImportError):
            reason = " ".join(str(error.__cause__).split()).rstrip(".")
            raise MissingPackageError(
                f"The entry `{key}` needs a package that is not installed ({reason}); install it, or choose another "
                "entry."
            ) from error
        raise InputError(f"The entry `{key}` cannot be built ({' '.join(str(error).split())}); correct it.") from error


def _judge(key: str, value: object) -> None:
    """Refuse settings that name what is not admitted; in a folder's, nothing may become a name afterwards."""
    if isinstance(value, str) and "${" in value:
        refuse_in_folder(f"`{key}={value}`", "resolved")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _judge(f"{key}.{number}", item)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _judge(f"{key}.{name}", item)
        if TARGET in value:
            import_target(f"{key}.{TARGET}", value[TARGET])


def model_class(name: object) -> Any:
    """Return the model class of transformers that a checkpoint names.

    Raises:
        InputError: If transformers has no such model.
    """
    import transformers

    found = getattr(transformers, str(name), None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise InputError(
            f"The checkpoint names the model class {name!r}, which transformers does not have; make the model, and "
            "give it to `TrainerModule.load_from_checkpoint(path, model=model)`."
        )
    return found


# ---- Parts that options name ----

LIGHTNING_LOGGERS = ("csv", "tensorboard")
"""Short names of Lightning loggers that write into the output folder."""

_CALLBACKS = {
    "batch_size_finder": "portico.callbacks.BatchSizeFinder",
    "lr_finder": "portico.callbacks.LearningRateFinder",
}


def imported(path: str) -> Any:
    """Return the object named ``package.module.Name``."""
    path = _CALLBACKS.get(path, path)
    if "." not in path:
        raise InputError(
            f"'{path}' is unknown; give package.module.Class, one of the loggers {', '.join(LIGHTNING_LOGGERS)}, or "
            f"one of the callbacks {', '.join(_CALLBACKS)}. A tracker of transformers, such as wandb, is set by "
            "`report_to` in the training arguments."
        )
    try:
        return resolved(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"'{path}' cannot be imported ({error}); give package.module.Class of something that Python finds."
        ) from error


def check_part(part: str) -> None:
    """Raise an ``InputError`` if no callback or logger has this name."""
    if part not in LIGHTNING_LOGGERS:
        imported(part)


def made_part(part: object) -> Any:
    """Return ``part``; a string is imported by name, and a class is instantiated."""
    found = imported(part) if isinstance(part, str) else part
    return found() if isinstance(found, type) else found
