"""Outputs of modules, captured during the forward pass."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


def log_activations(model: nn.Module, is_due: Callable[[], bool], write: Callable[[str, Any], None]) -> list[Any]:
    """Write the outputs of every module with a true ``should_log_activations``, whenever it is time.

    Args:
        model: Whose modules are watched.
        is_due: Whether the present forward pass is one to write.
        write: Called with a name and a tensor.

    Returns:
        Handles whose ``remove`` ends it.
    """

    def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
        if is_due():
            for suffix, output in _named(outputs):
                write(f"activation_histogram/{type(module)}{suffix}", output)

    watched = [module for module in model.modules() if getattr(module, "should_log_activations", False)]
    return [module.register_forward_hook(hook) for module in watched]


def _named(outputs: Any) -> list[tuple[str, Any]]:
    if isinstance(outputs, Mapping):
        return [(f"_{key}", output) for key, output in outputs.items()]
    if isinstance(outputs, list | tuple):
        return [(f"_{index}", output) for index, output in enumerate(outputs)]
    return [("", outputs)]
