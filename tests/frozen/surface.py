"""Write down what users can see, so that a change of it shows in a diff.

``python tests/frozen/surface.py`` records an intended change.
"""

import importlib
import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import transformers
from omegaconf import OmegaConf

from portico.cli import compose
from portico.cli.composition import experiment_names

FOLDER = Path(__file__).parent
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


def _lines_of_package(package: str) -> Iterator[str]:
    module = importlib.import_module(package)
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        if thing is getattr(transformers, name, None):
            yield f"{package}.{name} of transformers"
        elif inspect.isclass(thing):
            # Pythons differ in the signature that they give an enum.
            shown = f"[{', '.join(thing.__members__)}]" if issubclass(thing, Enum) else _parameters(thing)
            yield f"{package}.{name}{shown}"
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
