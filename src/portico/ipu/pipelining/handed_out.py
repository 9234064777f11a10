"""Weights that a module hands out instead of using them.

A weight lies on one IPU. One that is passed from layer to layer, as DeBERTa passes its relative positions, has to
leave its IPU as an activation: a copy of it.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

_CLASS_PREFIX = "HandingOut"


def hand_out_copies(modules: Iterable[nn.Module]) -> None:
    """Let the weights of ``modules`` be read as copies, made where they are read first."""
    for module in modules:
        kind = type(module)
        readers: dict[str, Any] = {name: property(_copy_of(name)) for name in module._parameters}
        module.__class__ = type(f"{_CLASS_PREFIX}{kind.__name__}", (kind,), {**readers, "__module__": __name__})


def without_copies(model: nn.Module) -> None:
    """Let all weights be read as they are."""
    for module in model.modules():
        if type(module).__name__.startswith(_CLASS_PREFIX) and type(module).__module__ == __name__:
            module.__class__ = type(module).__bases__[0]


def _copy_of(name: str) -> Any:
    def read(module: nn.Module) -> Tensor | None:
        parameter = module._parameters[name]
        return None if parameter is None else parameter.clone()

    return read
