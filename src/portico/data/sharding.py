"""Each process's share of the data, cut as accelerate cuts it for ``transformers.Trainer`` (``data_loader.py``).

:class:`BatchSamplerShard` shares the indices of data that have them, :class:`IterableDatasetShard` the examples of
other data.
"""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, IterableDataset

from portico.errors import InputError

if TYPE_CHECKING:
    from portico.annotations import Examples


@dataclass(eq=False, repr=False)
class BatchSamplerShard(BatchSampler):
    """The batches of one process.

    Args:
        batch_sampler: Batches of all processes.
        num_processes: Processes that share them.
        process_index: Which of them this is.
        split_batches: Give each process a part of every batch, instead of every ``num_processes``-th batch.
        even_batches: Complete the last round with examples from the start, so that no process has fewer batches.

    Raises:
        InputError: If batches are to be split and their size is not a multiple of the number of processes.
    """

    batch_sampler: BatchSampler
    _: KW_ONLY
    num_processes: int = 1
    process_index: int = 0
    split_batches: bool = False
    even_batches: bool = True

    def __post_init__(self) -> None:
        self.batch_size = getattr(self.batch_sampler, "batch_size", None)  # type: ignore[assignment]
        self.drop_last = getattr(self.batch_sampler, "drop_last", False)
        if self.split_batches:
            check_split(self.batch_size, self.num_processes)

    def __len__(self) -> int:
        total = len(self.batch_sampler)
        if self.split_batches:
            return total
        rounds, left_over = divmod(total, self.num_processes)
        if not left_over or self.drop_last:
            return rounds
        return rounds + (self.even_batches or self.process_index < left_over)

    def __iter__(self) -> Iterator[list[int]]:
        return self._parts() if self.split_batches else self._turns()

    def _parts(self) -> Iterator[list[int]]:
        """Yield this process's part of every batch."""
        size = self.batch_size // self.num_processes
        part = slice(size * self.process_index, size * (self.process_index + 1))
        first: list[int] = []
        batch: list[int] = []
        for batch in self.batch_sampler:
            first = first or batch
            if len(batch) == self.batch_size:
                yield batch[part]
        if self.drop_last or len(batch) in (0, self.batch_size):
            return
        if self.even_batches:
            batch = list(islice(chain(batch, cycle(first)), self.batch_size))
        if batch[part]:
            yield batch[part]

    def _turns(self) -> Iterator[list[int]]:
        """Yield this process's batch of every full round, then its share of the last, partial round."""
        head: list[list[int]] = []
        turn: list[list[int]] = []
        for batch in self.batch_sampler:
            if len(head) < self.num_processes:
                head.append(batch)
            if len(turn) == self.num_processes:
                turn = []
            turn.append(batch)
            if len(turn) == self.num_processes and self._is_full(batch):
                yield turn[self.process_index]
                turn = []
        if not turn or self.drop_last:
            return
        if self.even_batches:
            turn = self._completed(turn, head)
        if self.process_index < len(turn):
            yield turn[self.process_index]

    def _is_full(self, batch: list[int]) -> bool:
        return self.batch_size is None or len(batch) == self.batch_size

    def _completed(self, turn: list[list[int]], head: list[list[int]]) -> list[list[int]]:
        if self.batch_size is None:
            return list(islice(chain(turn, cycle(head)), self.num_processes))
        indices = chain(chain.from_iterable(turn), cycle(list(chain.from_iterable(head))))
        return [list(islice(indices, self.batch_size)) for _ in range(self.num_processes)]


@dataclass(eq=False, repr=False)
class IterableDatasetShard(IterableDataset[Any]):
    """The examples of one process, of a data set without indices that every process reads in full.

    Args:
        dataset: Examples of all processes.
        batch_size: Examples in a batch of one process; with ``split_batches``, of all.
        drop_last: Drop the examples that fill no batch, instead of completing them with those of the first.
        num_processes: Processes that share the examples.
        process_index: Which of them this is.
        split_batches: What ``batch_size`` means.

    Raises:
        InputError: If batches are to be split and their size is not a multiple of the number of processes.
    """

    dataset: "Examples"
    _: KW_ONLY
    batch_size: int = 1
    drop_last: bool = False
    num_processes: int = 1
    process_index: int = 0
    split_batches: bool = False

    def __post_init__(self) -> None:
        if self.split_batches:
            check_split(self.batch_size, self.num_processes)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        rounds = len(self.dataset) / (self.batch_size * self.num_processes)
        return (math.floor(rounds) if self.drop_last else math.ceil(rounds)) * self.batch_size

    def __iter__(self) -> Iterator[Any]:
        generator = getattr(self.dataset, "generator", None)
        if isinstance(generator, torch.Generator) and not hasattr(self.dataset, "set_epoch"):
            generator.manual_seed(self.epoch)
        whole = self.batch_size if self.split_batches else self.batch_size * self.num_processes
        size = whole // self.num_processes
        examples = iter(self.dataset)
        first: list[Any] = []
        while current := list(islice(examples, whole)):
            first = first or current
            if len(current) < whole:
                if self.drop_last:
                    return
                current = list(islice(chain(current, cycle(first)), whole))
            yield from current[size * self.process_index : size * (self.process_index + 1)]


def check_split(batch_size: int | None, num_processes: int) -> None:
    """Raise ``InputError`` for batches that cannot be split evenly."""
    if batch_size is None or batch_size % num_processes:
        raise InputError(
            f"`split_batches=True` splits each batch of {batch_size} examples over {num_processes} processes, which "
            f"leaves unequal parts; set the batch size to a multiple of {num_processes}, or `split_batches=False`."
        )
