"""The settings that exist, kept in files: a typo is refused, and help shown, without importing torch.

Those of portico's experiments come with it, in ``known_settings.json`` next to this file. They count if its sources
and the version of transformers are those that they were read from. Otherwise, and for other classes of portico, the
first command with an experiment reads them from the classes and writes them down for the user, with the size and the
time of every source file of portico and transformers that was loaded for it. They count as long as none of these has
changed. A class of the user's own may read its settings from anywhere.

The environment variable ``PORTICO_SETTINGS_CACHE_DIR`` names another folder than ``~/.cache/portico/settings``, or
``off``, with which settings are always read from the classes.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Any

import portico
from portico.cli.settings import (
    NO_DEFAULT,
    TARGET,
    ExperimentSchema,
    GroupSchema,
    KnownGroup,
    Rule,
    Setting,
    is_plain,
    plain_value,
)

VARIABLE = "PORTICO_SETTINGS_CACHE_DIR"
_KINDS = {one.__name__: one for one in (bool, int, float, str, list, NoneType)}
_READ_FROM = ("portico", "transformers")
OF_PORTICO = Path(__file__).with_suffix(".json")
_NOT_USABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, PackageNotFoundError)


def schema_for(settings: Mapping[str, Any]) -> ExperimentSchema:
    """Return all that may be set of the experiment that settings describe."""

    def read() -> ExperimentSchema:
        from portico.cli.experiment import schema_of_experiment

        return schema_of_experiment(settings)

    return _remembered(classes_of(settings), read)


def classes_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the classes that settings name, by group: all that a schema depends on."""
    groups = {name: one[TARGET] for name, one in settings.items() if isinstance(one, Mapping) and TARGET in one}
    return {**groups, TARGET: settings[TARGET]}


def _remembered(classes: Mapping[str, Any], read: Callable[[], ExperimentSchema]) -> ExperimentSchema:
    folder = os.environ.get(VARIABLE) or "~/.cache/portico/settings"
    if folder == "off" or not all(isinstance(one, str) and one.startswith("portico.") for one in classes.values()):
        return read()
    with suppress(*_NOT_USABLE):
        return _of_portico(classes)
    # Another Python or another installation has a file of its own.
    places = [sys.version, portico.__file__, getattr(find_spec("transformers"), "origin", None)]
    name = blake2b(json.dumps([*places, sorted(classes.items())]).encode(), digest_size=8).hexdigest()
    try:
        path = Path(folder).expanduser() / f"{name}.json"
    except RuntimeError:  # there is no home
        return read()
    # What is not what was written is written again.
    with suppress(*_NOT_USABLE):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if all(_state(file) == state for file, state in stored["files"].items()):
            return _decoded(stored["schema"])
    schema = read()
    _write(path, {"files": {file: _state(file) for file in _loaded_files()}, "schema": encoded(schema)})
    return schema


def _of_portico(classes: Mapping[str, Any]) -> ExperimentSchema:
    """Return the schema that came with portico.

    Raises:
        LookupError: If there is none for these classes, or if they have changed.
    """
    stored = json.loads(OF_PORTICO.read_text(encoding="utf-8"))
    if stored["read_from"] != digests(stored["read_from"]):
        raise LookupError("they were read from other sources")
    schema = stored["schemas"][name_of(classes)]
    groups = {group: [target, *stored["settings"][index]] for group, (target, index) in schema["groups"].items()}
    return _decoded({**schema, "groups": groups})


def name_of(classes: Mapping[str, Any]) -> str:
    """Return the name of a schema in the file that comes with portico."""
    return " ".join(f"{name}={target}" for name, target in sorted(classes.items()))


def digests(sources: Iterable[str]) -> dict[str, str]:
    """Return what tells other sources: of a file of portico a digest, of a package its version."""
    folder = Path(portico.__file__).parent
    return {
        one: blake2b((folder / one).read_bytes(), digest_size=8).hexdigest() if one.endswith(".py") else version(one)
        for one in sources
    }


def _loaded_files() -> list[str]:
    loaded = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _READ_FROM]
    return sorted({file for module in loaded if (file := getattr(module, "__file__", None))})


def _state(file: str) -> list[int]:
    found = Path(file).stat()
    return [found.st_mtime_ns, found.st_size]


def _write(path: Path, content: Any) -> None:
    with suppress(OSError, TypeError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several commands may write at the same time.
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(content), encoding="utf-8")
        new.replace(path)


def encoded(schema: ExperimentSchema) -> dict[str, Any]:
    """Return a schema as JSON has it."""
    groups = {
        name: [
            one.target,
            one.settings.is_open,
            {key: _encoded_setting(each) for key, each in one.settings.known.items()},
        ]
        for name, one in schema.groups.items()
    }
    return {"modes": list(schema.modes), "fields": list(schema.fields), "groups": groups}


def _encoded_setting(one: Setting) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in ("default", "effective")}
    kept = {name: plain_value(value) if is_plain(value) else value for name, value in values.items()}
    rule = one.rule and [
        [kind.__name__ for kind in one.rule.kinds],
        one.rule.least,
        list(one.rule.choices),
        one.rule.is_finite,
    ]
    return {name: value for name, value in kept.items() if value is not NO_DEFAULT} | {
        "rule": rule,
        "help": one.help,
    }


def _decoded(stored: Mapping[str, Any]) -> ExperimentSchema:
    groups = {
        name: KnownGroup(target, GroupSchema({key: _decoded_setting(each) for key, each in known.items()}, is_open))
        for name, (target, is_open, known) in stored["groups"].items()
    }
    return ExperimentSchema(stored["modes"], stored["fields"], groups)


def _decoded_setting(stored: Mapping[str, Any]) -> Setting:
    if stored["rule"] is None:
        return Setting(**stored)
    kinds, least, choices, is_finite = stored["rule"]
    rule = Rule(tuple(_KINDS[kind] for kind in kinds), least, tuple(choices), is_finite)
    return Setting(**{**stored, "rule": rule})
