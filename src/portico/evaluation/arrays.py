"""The outputs of an evaluation, kept batch by batch and joined once: time and memory stay linear."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_PADDING_INDEX = -100


class BatchedArrays:
    """Nested tensors of many batches that become nested arrays of the whole set.

    Args:
        concatenate: Join the batches along dimension 0, padding dimension 1 with -100 to the longest; otherwise give
            a list with an entry per batch.
        move_every: Batches after which tensors leave the device; ``None`` keeps them there until the end.
    """

    def __init__(self, *, concatenate: bool = True, move_every: int | None = None) -> None:
        self.concatenate = concatenate
        self.move_every = move_every
        self._batches: list[Any] = []
        self._num_moved = 0

    def add(self, tensors: Any) -> None:
        """Keep the outputs of one batch."""
        self._batches.append(tensors)
        if self.move_every is not None and len(self._batches) - self._num_moved >= self.move_every:
            self._move()

    def result(self) -> Any:
        """Return nested arrays of all examples, or ``None`` when there was nothing; the batches are given up."""
        self._move()
        batches, self._batches, self._num_moved = self._batches, [], 0
        if not batches:
            return None
        return _join(batches) if self.concatenate else batches

    def _move(self) -> None:
        for index in range(self._num_moved, len(self._batches)):
            self._batches[index] = to_arrays(self._batches[index])
        self._num_moved = len(self._batches)


def to_arrays(data: Any) -> Any:
    """Turn nested tensors into nested arrays; bfloat16, which numpy lacks, becomes float32."""
    if isinstance(data, torch.Tensor):
        tensor = data.detach().cpu()
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    if isinstance(data, Mapping):
        return type(data)({key: to_arrays(value) for key, value in data.items()})  # type: ignore[call-arg]
    if isinstance(data, list | tuple):
        return type(data)(to_arrays(value) for value in data)
    return data


def _join(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, Mapping):
        return type(first)(  # type: ignore[call-arg]
            {key: _join([batch[key] for batch in batches]) for key in first}
        )
    if isinstance(first, list | tuple):
        # Lists of objects that processes gathered are cut to the shortest, as transformers cuts them.
        return type(first)(_join(list(column)) for column in zip(*batches, strict=False))
    return _join_arrays([np.atleast_1d(batch) for batch in batches])


def _join_arrays(arrays: list[Any]) -> Any:
    if arrays[0].ndim == 1 or len({array.shape[1] for array in arrays}) == 1:
        return np.concatenate(arrays, axis=0)
    longest = max(array.shape[1] for array in arrays)
    shape = (sum(len(array) for array in arrays), longest, *arrays[0].shape[2:])
    joined = np.full(shape, _PADDING_INDEX, dtype=np.result_type(*arrays))
    row = 0
    for array in arrays:
        joined[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return joined
