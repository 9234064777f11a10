"""The outputs of an evaluation, joined as they come: memory stays near that of the result, time is linear."""

from typing import Any

import torch

from portico.errors import InputError
from portico.evaluation.column import Column
from portico.nested import map_tensors, named_tensors


class JoinedArrays:
    """Nested tensors of many batches that become nested arrays of the whole set.

    Batches are joined along dimension 0, and dimension 1 is padded with -100 to the longest.

    Args:
        move_every: Batches after which tensors leave the device; ``None`` keeps them there until the end.
        num_rows: Rows to make room for; ``None`` when nobody knows.
    """

    def __init__(self, *, move_every: int | None = None, num_rows: int | None = None) -> None:
        self._options = {"move_every": move_every, "num_rows": num_rows}
        self._columns: dict[str, Column] = {}
        self._form: Any = None

    def add(self, tensors: Any) -> None:
        """Keep the outputs of one batch.

        Raises:
            TypeError: If there is anything but tensors in them.
            InputError: If they cannot be joined to those of the batches before.
        """
        outputs = named_tensors(tensors)
        if not self._columns:
            self._columns = {name: Column(**self._options) for name in outputs}
            self._form = map_tensors(lambda tensor: tensor.new_empty(0), tensors)
        if outputs.keys() != self._columns.keys() and isinstance(tensors, list) and isinstance(self._form, list):
            outputs = self._cut_to_shortest(tensors)
        if outputs.keys() != self._columns.keys():
            raise InputError(
                f"A batch of an evaluation gave the outputs {sorted(outputs)} where those before it gave "
                f"{sorted(self._columns)}; let `prediction_step` return the same outputs for every batch."
            )
        for name, tensor in outputs.items():
            self._columns[name].append(tensor)

    def _cut_to_shortest(self, tensors: list[Any]) -> dict[str, torch.Tensor]:
        """Leave out what only some batches have, as transformers does with lists of objects of several processes."""
        length = min(len(tensors), len(self._form))
        self._form = self._form[:length]
        outputs = named_tensors(tensors[:length])
        self._columns = {name: column for name, column in self._columns.items() if name in outputs}
        return outputs

    def result(self) -> Any:
        """Return nested arrays of all examples, or ``None`` when there was nothing; what was kept is given up."""
        columns, self._columns = self._columns, {}
        form, self._form = self._form, None
        arrays = iter([column.result() for column in columns.values()])
        return map_tensors(lambda _: next(arrays), form)


class BatchList:
    """Nested tensors of many batches that become a list of nested arrays, an entry per batch.

    Args:
        move_every: Batches after which tensors leave the device; ``None`` keeps them there until the end.
    """

    def __init__(self, *, move_every: int | None = None) -> None:
        self.move_every = move_every
        self._batches: list[Any] = []
        self._num_moved = 0

    def add(self, tensors: Any) -> None:
        """Keep the outputs of one batch."""
        self._batches.append(map_tensors(_without_surroundings, tensors))
        if self.move_every is not None and len(self._batches) - self._num_moved >= self.move_every:
            self._move()

    def result(self) -> Any:
        """Return the arrays of each batch, or ``None`` when there was nothing; what was kept is given up."""
        self._move()
        batches, self._batches, self._num_moved = self._batches, [], 0
        return batches or None

    def _move(self) -> None:
        for index in range(self._num_moved, len(self._batches)):
            self._batches[index] = to_arrays(self._batches[index])
        self._num_moved = len(self._batches)


def to_arrays(data: Any) -> Any:
    """Turn nested tensors into nested arrays; bfloat16, which numpy lacks, becomes float32."""
    return map_tensors(_to_array, data)


def _to_array(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _without_surroundings(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, copied if it is a view that would keep a larger one alive."""
    tensor = tensor.detach()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
