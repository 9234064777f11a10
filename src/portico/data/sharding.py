"""Each process's share of the data, split as accelerate does for ``transformers.Trainer`` (``data_loader.py``)."""

import math
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch.utils.data import BatchSampler

from portico.compat import transformers as hf_compat

if TYPE_CHECKING:
    from portico.compat.annotations import Examples

T = TypeVar("T")


def _identity(data: T) -> T:
    # No lambda: a trainer is pickled for workers that a strategy spawns.
    return data


@dataclass(slots=True)
class DataLoaderConfig:
    """How to prepare a loader for this process; a loader keeps the configuration it was prepared with."""

    device: torch.device | None = None
    """Where batches are moved; by default nowhere."""
    num_processes: int = 1
    """Number of processes that share the batches."""
    process_index: int = 0
    broadcast: Callable[[Any], Any] = _identity
    """Returns the first process's object in all processes."""
    gather: Callable[[list[Any]], list[Any]] = _identity
    """Returns the lists of all processes as one list."""
    data_seed: int | None = None
    """Seed of the order; by default the seed of torch's global generator when a loader is prepared."""
    split_batches: bool = False
    """Split each batch over the processes, instead of giving them batches in turn."""
    dispatch_batches: bool | None = None
    """Read data on the first process only; by default if they have no indices."""
    even_batches: bool = True
    """Complete the last round of batches with examples from the start."""
    use_seedable_sampler: bool = True
    """Draw the random order from a seed and the epoch."""
    non_blocking: bool = False
    """Do not wait for copies to the device."""
    counts_streams: bool = False
    """Count the examples that only complete the end of a stream that all processes read."""


class BatchSamplerShard(BatchSampler):
    """The batches of one process: a part of every batch in ``batch_sampler``, or every ``num_processes``-th batch."""

    batch_size: Any  # an int, or ``None`` where the sampler has no fixed size

    def __init__(self, batch_sampler: BatchSampler, config: DataLoaderConfig) -> None:
        self.batch_sampler, self.config = batch_sampler, config
        self.num_processes, self.process_index = config.num_processes, config.process_index
        self.split_batches = config.split_batches
        self.batch_size = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)

    def __len__(self) -> int:
        total = len(self.batch_sampler)
        if self.split_batches:
            return total
        rounds, left_over = divmod(total, self.num_processes)
        if not left_over or self.drop_last:
            return rounds
        return rounds + (self.config.even_batches or self.process_index < left_over)

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
        if self.config.even_batches:
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
            if len(turn) == self.num_processes and self.batch_size in (None, len(batch)):
                yield turn[self.process_index]
                turn = []
        if not turn or self.drop_last:
            return
        if self.config.even_batches and self.batch_size is None:
            turn = list(islice(chain(turn, cycle(head)), self.num_processes))
        elif self.config.even_batches:
            indices = chain(chain.from_iterable(turn), cycle(list(chain.from_iterable(head))))
            turn = [list(islice(indices, self.batch_size)) for _ in range(self.num_processes)]
        if self.process_index < len(turn):
            yield turn[self.process_index]


class IterableDatasetShard(hf_compat.IterableDatasetShard):
    """The examples of one process, of a dataset without indices that every process reads in full.

    ``batch_size`` counts the examples of one process, or of all processes if batches are split. A last, partial batch
    is completed with examples of the first batch, or dropped with ``drop_last``.
    """

    def __init__(
        self, dataset: "Examples", config: DataLoaderConfig, *, batch_size: int = 1, drop_last: bool = False
    ) -> None:
        share = batch_size // config.num_processes if config.split_batches else batch_size
        # Not the whole configuration: workers get a copy of this dataset, and its functions belong to the trainer.
        super().__init__(dataset, share, drop_last, config.num_processes, config.process_index)
        self._given_batch_size = batch_size

    def __len__(self) -> int:
        # accelerate counts batches that are split as if each process got a full batch.
        num_examples = len(cast(Sized, self.dataset))  # raises if it has no length
        rounds = num_examples / (self._given_batch_size * self.num_processes)
        return (math.floor(rounds) if self.drop_last else math.ceil(rounds)) * self._given_batch_size
