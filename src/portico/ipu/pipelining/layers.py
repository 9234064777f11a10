"""From ``layers_per_ipu`` to the IPU of each layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from portico.errors import InputError
from portico.ipu.config import IncompatibleIPUConfigError
from portico.nested import map_tensors

WILDCARD = -1


def layer_ipus(layers_per_ipu: Sequence[int], num_ipus: int, num_layers: int) -> list[int]:
    """Return the IPU of each layer.

    Args:
        layers_per_ipu: Layers on each IPU; -1 takes a share of those that are left, the last -1 what remains.
        num_ipus: IPUs of a replica; with one, all layers are on it.
        num_layers: Layers of the model.

    Raises:
        IncompatibleIPUConfigError: If the numbers do not fit.
    """
    if num_ipus == 1:
        return [0] * num_layers
    counts = [WILDCARD] * num_ipus if list(layers_per_ipu) == [WILDCARD] else list(layers_per_ipu)
    if len(counts) != num_ipus:
        raise IncompatibleIPUConfigError(
            "layers_per_ipu has a non-default value set, but its length does not match ipus_per_replica: "
            f"{list(layers_per_ipu)} for {num_ipus} IPUs; give one number of layers for each IPU."
        )
    left = num_layers - sum(count for count in counts if count != WILDCARD)
    open_ipus = [ipu for ipu, count in enumerate(counts) if count == WILDCARD]
    if left < 0 or (left and not open_ipus):
        raise IncompatibleIPUConfigError(
            "layers_per_ipu does not define the correct number of layers for the current model: "
            f"{list(layers_per_ipu)} places {num_layers - left} layers, and the model has {num_layers}; let the "
            "numbers add up, or use -1 for those that are left."
        )
    for ipu in open_ipus:
        counts[ipu] = left // len(open_ipus)
    if open_ipus:
        counts[open_ipus[-1]] += left % len(open_ipus)
    return [ipu for ipu, count in enumerate(counts) for _ in range(count)]


_LAYER_SUFFIXES = ("Layer", "Block")


def layer_names(model: nn.Module, stacks: Sequence[str] | None = None) -> list[str]:
    """Return the names of the layers of a model, stack by stack.

    A stack is a topmost ``ModuleList`` of layers: of those that ``transformers`` knows for checkpointing, of those the
    model lists as not to be split, or of modules whose class is called a layer or a block.

    Args:
        model: The model.
        stacks: Names of the stacks, where they are told.

    Raises:
        InputError: If a stack does not exist.
    """
    if stacks is not None:
        return [f"{stack}.{index}" for stack in stacks for index in range(len(_told(model, stack)))]
    unsplit = set(getattr(model, "_no_split_modules", None) or ())
    for is_layer in (
        lambda module: isinstance(module, GradientCheckpointingLayer),
        lambda module: type(module).__name__ in unsplit,
        lambda module: type(module).__name__.endswith(_LAYER_SUFFIXES),
    ):
        found = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and len(module) and all(is_layer(item) for item in module)
        ]
        topmost = [name for name in found if not any(name.startswith(f"{other}.") for other in found if other != name)]
        if topmost:
            return [f"{name}.{index}" for name in topmost for index in range(len(_told(model, name)))]
    return []


def _told(model: nn.Module, name: str) -> nn.ModuleList:
    try:
        stack = model.get_submodule(name)
    except AttributeError as error:
        raise InputError(f"The model has no layers {name!r}: {error}; name a `ModuleList` of it.") from error
    if not isinstance(stack, nn.ModuleList):
        raise InputError(f"{name!r} is a {type(stack).__name__}; name a `ModuleList` of layers.")
    return stack


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
    """Tell whether a module holds weights that no module inside it holds too, and which thus uses them."""
    inner = {id(parameter) for child in module.children() for parameter in child.parameters()}
    return any(parameter is not None and id(parameter) not in inner for parameter in module._parameters.values())
