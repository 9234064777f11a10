"""A loader that the first process reads for all."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers.trainer_pt_utils import find_batch_size

from portico.errors import InputError
from portico.loading.loaders import LookAheadLoader
from portico.nested import map_tensors


class DispatchingLoader(LookAheadLoader):
    """Batches that the first process reads, a batch for each process at a time, and gives out.

    Data that cannot be indexed are read once this way, and in one order. The last joint batch is completed with
    examples of the first, so that all processes get as many.

    Raises:
        InputError: When it is iterated, if there is not a single batch.
    """

    def __len__(self) -> int:
        total = super().__len__()
        if self.sharing.split_batches:
            return total
        rounds = total / self.sharing.num_processes
        return math.ceil(rounds) if self.keeps_remainder else math.floor(rounds)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._first: Any = None
        return super().__iter__()

    def _batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        # Every process has made an iterator, and drawn its seed; the first one alone goes through it.
        joint = self._joint_batches(batches)
        is_first = self.sharing.process_index == 0
        is_empty = True
        while (batch := self.sharing.broadcast(next(joint, None) if is_first else None)) is not None:
            is_empty = False
            yield batch
        if is_empty:
            raise InputError(
                f"The data set (`{type(self.dataset).__name__}`) gave no batch when it was gone through; it must give "
                "some each time that it is, and training goes through a stream until `max_steps`: give one that "
                "begins anew with each `iter()`, set `max_steps` to what it has, or set `accelerator_config="
                "{'dispatch_batches': False}`, with which training ends where the data do."
            )

    def _joint_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Put together the batches of all processes."""
        count = 1 if self.sharing.split_batches else self.sharing.num_processes
        collected: list[Any] = []
        for batch in batches:
            collected.append(batch)
            if len(collected) == count:
                yield _concatenated(collected)
                collected = []
        if collected and self.keeps_remainder:
            yield _concatenated(collected)

    def _prepared(self, batch: Any, is_last: bool) -> Any:
        sharing, count = self.sharing, self.sharing.num_processes
        batch = super()._prepared(batch, is_last)
        num_examples = find_batch_size(batch)
        if is_last:
            self.remainder = num_examples or -1
        if count == 1 or num_examples is None:
            return batch
        if self.keeps_remainder and self._first is None:
            self._first = map_tensors(lambda tensor: tensor[:count], batch)
        size, left_over = divmod(num_examples, count)
        if is_last and left_over and self.keeps_remainder:
            batch = _concatenated([batch, self._first])
            size += 1
        start = sharing.process_index * size
        return map_tensors(lambda tensor: tensor[start : start + size], batch)

    def _known_remainder(self) -> int:
        return -1


def _concatenated(batches: list[Any]) -> Any:
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return _concatenated_tensors(batches)
    if isinstance(first, Mapping):
        joined = {key: _concatenated([batch[key] for batch in batches]) for key in first}
        return type(first)(joined)  # type: ignore[call-arg]
    if isinstance(first, list | tuple):
        values = [_concatenated(list(column)) for column in zip(*batches, strict=True)]
        return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)
    raise TypeError(
        f"A batch holds a {type(first).__name__}, which cannot be joined with that of the next process; let the "
        "collator give tensors, or set `dispatch_batches=False` in `accelerator_config`."
    )


def _concatenated_tensors(tensors: list[torch.Tensor]) -> torch.Tensor:
    try:
        return torch.cat(tensors)
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise RuntimeError(
            f"The first process reads the batches of all and joins them, but theirs have the shapes {shapes}; pad "
            "them to one length in the collator, or set `dispatch_batches=False` (every process reads by itself) or "
            "`split_batches=True` in `accelerator_config`."
        ) from error
