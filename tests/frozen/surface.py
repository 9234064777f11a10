"""Write down what users can see, so that a change of it shows in a diff.

``python tests/frozen/surface.py`` renews the recorded files, when such a change is meant, and the settings that come
with the package, which it reads from the same experiments.
"""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import portico
from portico.cli import compose
from portico.cli.composition import experiment_names
from portico.cli.experiment import experiment_class, import_target, schema_of_experiment
from portico.cli.known_settings import OF_PORTICO, classes_of, digests, encoded, name_of

FOLDER = Path(__file__).parent
# Names and rules come from these too, and not only from where the classes are.
_READ_FOR_ALL = (
    "arguments.py",
    "deprecated.py",
    "experiment.py",
    "settings.py",
    "cli/known_settings.py",
    "transformers",
)
PACKAGES = [
    "portico",
    "portico.gradient_descent",
    "portico.mrc",
    "portico.mrc.metrics",
    "portico.mrc.primeqa",
    "portico.ort",
]


def public_surface() -> str:
    """Return a line for each public name, and below a class one for each public method and property."""
    return "\n".join(line for package in PACKAGES for line in _lines_of_package(package)) + "\n"


def composed(experiment: str) -> str:
    """Return the configuration of an experiment as ``--cfg job`` prints it."""
    overrides = ["paths.output_dir=outputs", "paths.sweep_dir=multirun"]  # these hold the time otherwise
    return OmegaConf.to_yaml(OmegaConf.create(compose(overrides, experiment=experiment)), sort_keys=True)


def known_settings() -> dict[str, Any]:
    """Return the settings of the experiments, which come with portico, and the sources that they are read from."""
    schemas: dict[str, Any] = {}
    different: dict[str, int] = {}  # in JSON, since the order counts, and their indices
    sources = set(_READ_FOR_ALL)
    for experiment in experiment_names():
        settings = compose(experiment=experiment)
        found = schema_of_experiment(settings)
        targets = [experiment_class(settings)]
        targets += [import_target(name, one.target) for name, one in found.groups.items()]
        modules = {owner.__module__ for target in targets for owner in inspect.getmro(target)}
        files = [str(importlib.import_module(name).__file__) for name in modules if name.startswith("portico.")]
        sources |= {Path(file).relative_to(str(Path(portico.__file__).parent)).as_posix() for file in files}
        schema = schemas[name_of(classes_of(settings))] = encoded(found)
        for group, (target, *known) in schema["groups"].items():
            schema["groups"][group] = [target, different.setdefault(json.dumps(known), len(different))]
    return {
        "read_from": digests(sorted(sources)),
        "schemas": schemas,
        "settings": [json.loads(known) for known in different],
    }


def as_text(known: dict[str, Any]) -> str:
    """Return the settings as their file holds them, a line each."""
    text = json.dumps(known, indent=1, ensure_ascii=False)
    return re.sub(r"\n {5,}|\n {4}(?=[]}])", " ", text) + "\n"


def _lines_of_package(package: str) -> Iterator[str]:
    module = importlib.import_module(package)
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        if inspect.isclass(thing):
            yield f"{package}.{name}{_parameters(thing)}"
            yield from _lines_of_class(f"{package}.{name}", thing)
        else:
            yield f"{package}.{name}{_parameters(thing) if callable(thing) else f': {type(thing).__name__}'}"


def _lines_of_class(path: str, kind: type) -> Iterator[str]:
    ours = [base for base in kind.__mro__ if base.__module__.startswith(("portico", "poptorch_emulator"))]
    names = {name for base in ours for name in vars(base) if not name.startswith("_")}
    for name in sorted(names):
        member = getattr(kind, name, None)
        static = inspect.getattr_static(kind, name, None)
        if isinstance(static, property):
            yield f"    {path}.{name}: property"
        elif inspect.isroutine(member):
            yield f"    {path}.{name}{_parameters(member)}"


def _parameters(function: object) -> str:
    """Return names and defaults; types may become more precise without a user noticing."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    bare = [
        one.replace(annotation=one.empty, default=one.empty if one.default is one.empty else _Plain(one.default))
        for one in signature.parameters.values()
    ]
    return str(inspect.Signature(bare))


class _Plain:
    """A default, written without addresses and without the module it comes from."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        if isinstance(self.value, str | int | float | bool | tuple | list | dict | type(None)):
            return repr(self.value)
        return getattr(self.value, "__name__", type(self.value).__name__)


if __name__ == "__main__":
    (FOLDER / "public_surface.txt").write_text(public_surface(), encoding="utf-8")
    for one in experiment_names():
        (FOLDER / f"{one}.yaml").write_text(composed(one), encoding="utf-8")
    OF_PORTICO.write_text(as_text(known_settings()), encoding="utf-8")
