"""Nested tensors: map over them, name them, pad them across processes."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from portico.compat.annotations import Nested


def map_tensors(function: Callable[[torch.Tensor], Any], data: "Nested") -> Any:
    """Apply ``function`` to every tensor of a nested tuple, list or mapping, keeping the containers' types."""
    if isinstance(data, torch.Tensor):
        return function(data)
    # The type first: `isinstance` of an abstract class costs as much as the rest.
    if type(data) is dict or isinstance(data, Mapping):
        return type(data)({key: map_tensors(function, value) for key, value in data.items()})  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_tensors(function, value) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(map_tensors(function, value) for value in data)
    return data


def is_per_example(data: "Nested", num_examples: int | None) -> bool:
    """Return whether ``data`` has an entry for each example, as labels of detection do, instead of batched tensors.

    A list of tensors that have a row for each example too is taken for entries, a tuple for outputs of a model.
    """
    if not isinstance(data, list | tuple) or hasattr(data, "_fields") or len(data) != num_examples:
        return False
    lengths: set[int | None] = set()
    map_tensors(lambda tensor: lengths.add(len(tensor) if tensor.dim() else None), list(data))
    return isinstance(data, list) or not lengths <= {num_examples, None}


def collect_tensors(data: "Nested", name: str = "") -> dict[str, torch.Tensor]:
    """Return every tensor of a nested tuple, list or mapping under its path, in the order of :func:`map_tensors`."""
    if isinstance(data, torch.Tensor):
        return {name: data}
    if isinstance(data, Mapping):
        parts = data.items()
    elif isinstance(data, list | tuple):
        parts = dict(enumerate(data)).items()
    else:
        raise TypeError(
            f"Unsupported type {type(data).__name__} among the outputs of an evaluation{name and f', at {name}'}: "
            "only tensors can be gathered, in any nest of tuples, lists and mappings. Let `prediction_step` return "
            "tensors, or name the output in `ignore_keys`."
        )
    return {path: leaf for key, value in parts for path, leaf in collect_tensors(value, f"{name}[{key!r}]").items()}


def pad_to_longest(
    all_gather: Callable[[torch.Tensor], torch.Tensor], data: "Nested", *, dim: int, pad_index: int, pad_first: bool
) -> Any:
    """Pad every tensor along ``dim``, where it has that dimension, to the longest of all processes.

    The padding is ``pad_index``, at the start with ``pad_first``; ``all_gather``, called once, stacks a tensor of
    every process.
    """
    sizes: list[int] = []
    devices: list[torch.device] = []

    def has_dim(tensor: torch.Tensor) -> bool:
        return -tensor.dim() <= dim < tensor.dim()

    def note(tensor: torch.Tensor) -> None:
        if has_dim(tensor):
            sizes.append(tensor.shape[dim])
            devices.append(tensor.device)

    map_tensors(note, data)
    if not sizes:
        return data
    longest = iter(all_gather(torch.tensor(sizes, device=devices[0])).amax(dim=0).tolist())

    def pad_one(tensor: torch.Tensor) -> torch.Tensor:
        if not has_dim(tensor):
            return tensor
        own, most = tensor.shape[dim], next(longest)
        if most == own:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = most
        # Addition promotes types that cannot hold the padding, such as booleans.
        padded = tensor.new_zeros(shape) + pad_index
        padded.narrow(dim, most - own if pad_first else 0, own).copy_(tensor)
        return padded

    return map_tensors(pad_one, data)
