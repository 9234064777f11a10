"""Nested tensors of several processes brought together."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import pad


def map_tensors(function: Callable[[torch.Tensor], Any], data: Any) -> Any:
    """Apply ``function`` to every tensor of a nested tuple, list or mapping, keeping the containers' types."""
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, Mapping):
        return type(data)({key: map_tensors(function, value) for key, value in data.items()})  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_tensors(function, value) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(map_tensors(function, value) for value in data)
    return data


def pad_to_longest(strategy: Any, data: Any, *, dim: int, pad_index: int, pad_first: bool) -> Any:
    """Pad every tensor along ``dim`` to the longest of all processes.

    Args:
        strategy: Lightning strategy of the run.
        data: Nested tensors.
        dim: Dimension to pad; tensors without it are left alone.
        pad_index: Value to pad with.
        pad_first: Pad in front.
    """

    def pad_one(tensor: torch.Tensor) -> torch.Tensor:
        if dim >= tensor.dim():
            return tensor
        length = torch.tensor(tensor.shape[dim], device=tensor.device)
        missing = int(strategy.all_gather(length).max()) - tensor.shape[dim]
        widths = [0, 0] * (tensor.dim() - dim - 1) + ([missing, 0] if pad_first else [0, missing])
        return pad(tensor, widths, value=pad_index)

    return map_tensors(pad_one, data)
