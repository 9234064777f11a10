"""The layers of a model: which modules they are, in which order they run, and the IPU of each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from portico.errors import InputError
from portico.ipu.config import IncompatibleIPUConfigError
from portico.nested import map_tensors

WILDCARD = -1
_LAYER_SUFFIXES = ("Layer", "Block")


def layer_names(model: nn.Module, stacks: Sequence[str] | None = None) -> list[str]:
    """Return the names of the layers of a model, stack by stack.

    A stack is a topmost ``ModuleList`` of layers. Layers are the modules that ``transformers`` can checkpoint, or else
    those listed in ``_no_split_modules``, or else those whose class is named ``...Layer`` or ``...Block``.

    Args:
        model: The model.
        stacks: Names of the stacks; by default they are searched for.

    Raises:
        InputError: If a stack does not exist.
    """
    if stacks is None:
        stacks = _find_stacks(model)
    return [f"{stack}.{index}" for stack in stacks for index in range(len(_module_list(model, stack)))]


def _find_stacks(model: nn.Module) -> list[str]:
    unsplit = set(getattr(model, "_no_split_modules", None) or ())
    criteria: tuple[Callable[[nn.Module], bool], ...] = (
        lambda module: isinstance(module, GradientCheckpointingLayer),
        lambda module: type(module).__name__ in unsplit,
        lambda module: type(module).__name__.endswith(_LAYER_SUFFIXES),
    )
    for is_layer in criteria:
        found = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and len(module) and all(map(is_layer, module))
        ]
        if found:
            return [
                name for name in found if not any(name.startswith(f"{other}.") for other in found if other != name)
            ]
    return []


def _module_list(model: nn.Module, name: str) -> nn.ModuleList:
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
        model: The model; its modes and buffers and the host's random state are left unchanged.
        layers: Names of the layers; modules inside them are not listed.
        sample: Inputs of a micro-batch.

    Returns:
        Names of layers, and of modules outside the layers that hold parameters themselves; a module that is called
        several times is listed several times.
    """
    called: list[str] = []
    inside = tuple(f"{layer}." for layer in layers)
    names: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        if name in layers or (not name.startswith(inside) and _uses_own_parameters(module)):
            names.setdefault(module, name)
    # `append` returns None; a pre-hook that returns something else replaces the inputs.
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


def _uses_own_parameters(module: nn.Module) -> bool:
    """Return whether a module holds parameters that no module inside it holds too, and so uses them itself."""
    inner = {id(parameter) for child in module.children() for parameter in child.parameters()}
    return any(parameter is not None and id(parameter) not in inner for parameter in module._parameters.values())


def layer_ipus(layers_per_ipu: Sequence[int], num_ipus: int, num_layers: int) -> list[int]:
    """Return the IPU of each layer.

    Args:
        layers_per_ipu: Layers on each IPU; IPUs with -1 share the remaining layers, the last of them taking the rest.
        num_ipus: IPUs of a replica; if there is one, it takes all layers.
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
            f"{list(layers_per_ipu)} places {num_layers - left} layers, and the model has {num_layers}; make the "
            "numbers add up, or use -1 for the remaining layers."
        )
    for ipu in open_ipus:
        counts[ipu] = left // len(open_ipus)
    if open_ipus:
        counts[open_ipus[-1]] += left % len(open_ipus)
    return [ipu for ipu, count in enumerate(counts) for _ in range(count)]
