"""In which order a model runs its layers and the modules between them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from portico.tree import map_tensors


def execution_order(model: nn.Module, layers: Sequence[str], sample: Mapping[str, Any]) -> list[str]:
    """Run a micro-batch forward once, and return the modules with parameters in the order they are called.

    Args:
        model: The model; it is left as it was, and draws no random numbers from the host's stream.
        layers: Names of the layers; the modules inside them do not count.
        sample: Inputs of a micro-batch.

    Returns:
        Names of layers, and of modules outside the layers that hold parameters themselves; one that is called several
        times comes several times.
    """
    called: list[str] = []
    inside = tuple(f"{layer}." for layer in layers)
    names: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        is_counted = name in layers or (not name.startswith(inside) and _uses_own_weights(module))
        if is_counted:
            names.setdefault(module, name)
    # A pre-hook that returned something would replace the inputs.
    hooks = [module.register_forward_pre_hook(lambda module, inputs: called.append(names[module])) for module in names]
    modes = [(module, module.training) for module in model.modules()]
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            model(**map_tensors(Tensor.clone, dict(sample)))
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
        for name, tensor in model.named_buffers():
            tensor.data.copy_(buffers[name])
    return called


def _uses_own_weights(module: nn.Module) -> bool:
    """Return whether a module holds weights that no module inside it holds too, and which thus uses them."""
    inner = {id(parameter) for child in module.children() for parameter in child.parameters()}
    return any(parameter is not None and id(parameter) not in inner for parameter in module._parameters.values())
