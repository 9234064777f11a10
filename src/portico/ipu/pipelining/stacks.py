"""Which modules of a model are its layers."""

from collections.abc import Sequence

from torch import nn
from transformers import GradientCheckpointingLayer

from portico.errors import InputError

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
