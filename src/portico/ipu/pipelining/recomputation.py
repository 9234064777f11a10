"""Outputs of layers that a program keeps, to recompute from them what lies between."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from portico.ipu import backend


class RecomputationPoint:
    """Forward hook of a layer whose output is kept."""

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Return the output, whose first tensor is kept."""
        if isinstance(output, Tensor):
            return backend.recomputationCheckpoint(output)
        return (backend.recomputationCheckpoint(output[0]), *output[1:]) if isinstance(output, tuple) else output


def recompute_from(model: nn.Module, layers: Sequence[str]) -> None:
    """Keep the outputs of ``layers``."""
    for name in layers:
        model.get_submodule(name).register_forward_hook(RecomputationPoint())


def without_recomputation(model: nn.Module) -> None:
    """Keep nothing."""
    for module in model.modules():
        for number, hook in list(module._forward_hooks.items()):
            if isinstance(hook, RecomputationPoint):
                del module._forward_hooks[number]
