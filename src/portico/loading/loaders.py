"""Data loaders with the order and the random draws of ``transformers.Trainer``.

Two facts carry bit-identity: a loader draws **one** base seed from the global generator each time it is iterated, and
it fetches **one batch ahead** of the batch it gives, so data sets and collators that draw random numbers do so at the
same moments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from transformers.trainer_utils import has_length

from portico.loading.samplers import SkipBatchSampler
from portico.loading.sharing import BatchSharing
from portico.nested import map_tensors

_CARRIED_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "generator",
    "in_order",
)


class LookAheadLoader(DataLoader[Any]):
    """A ``DataLoader`` that knows its last batch when it gives it.

    Args:
        dataset: Examples.
        sharing: How the processes share the batches.
        num_batches_to_skip: Batches fetched but not given at the start (for data without indices).
        keeps_remainder: Whether the last, smaller batch is given (``drop_last`` is off).
        epoch: Epoch of the first iteration.
        shared_generator: Generator that every process starts an iteration with in the first one's state.
        **options: Options of ``torch.utils.data.DataLoader``.

    Attributes:
        end_of_dataloader: Whether the batch given last is the final one.
        remainder: Examples of all processes in the final batch, 0 when it is full, -1 when unknown.
        announce: Context of an iteration, for those who ask which loader is being iterated.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        sharing: BatchSharing,
        num_batches_to_skip: int = 0,
        keeps_remainder: bool = True,
        epoch: int = 0,
        shared_generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, **options)
        self.sharing = sharing
        self.num_batches_to_skip = num_batches_to_skip
        self.keeps_remainder = keeps_remainder
        self.epoch = epoch
        self.shared_generator = shared_generator
        self.end_of_dataloader = False
        self.remainder = -1
        self.announce: Callable[[LookAheadLoader], AbstractContextManager[Any]] = nullcontext

    @property
    def total_batch_size(self) -> int:
        """Examples in a full batch, over all processes."""
        batches: Any = self.sampler if isinstance(self.sampler, BatchSampler) else self.batch_sampler
        size = int(getattr(batches, "batch_size", None) or 1)
        return size if getattr(batches, "split_batches", False) else size * getattr(batches, "num_processes", 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of ``epoch`` in every sampler, and in the data set if it cares."""
        self.epoch = epoch
        sampler: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        while sampler is not None:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            inner = getattr(sampler, "batch_sampler", None)
            sampler = inner if inner is not None else getattr(sampler, "sampler", None)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with self.announce(self):
            yield from self._look_ahead()

    def _look_ahead(self) -> Iterator[Any]:
        if self.shared_generator is not None:
            self.shared_generator.set_state(self.sharing.broadcast(self.shared_generator.get_state()))
        self.end_of_dataloader = False
        self.remainder = self._known_remainder()
        self.set_epoch(self.epoch)
        for index, (batch, is_last) in enumerate(with_last_flag(self._batches(super().__iter__()))):
            given = self._prepared(batch, is_last)
            if is_last:
                self.end_of_dataloader = True
            if index >= self.num_batches_to_skip:
                yield given
        self.epoch += 1

    def _batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Give what is fetched ahead."""
        return batches

    def _prepared(self, batch: Any, is_last: bool) -> Any:
        """Make what this process gets of a batch that was fetched."""
        if self.sharing.device is None:
            return batch
        return move_to_device(batch, self.sharing.device, non_blocking=self.sharing.non_blocking)

    def _known_remainder(self) -> int:
        if not self.keeps_remainder or not has_length(self.dataset):
            return -1
        return len(self.dataset) % self.total_batch_size


def skip_first_batches(loader: Any, num_batches: int) -> Any:
    """Return a loader that goes on after ``num_batches``: by index where there are indices, else by fetching them."""
    if not isinstance(loader, DataLoader):
        return _SkippedIterable(loader, num_batches)
    options = carried_options(loader) | batching_options(loader)
    by_index = not isinstance(loader.dataset, IterableDataset)
    for name in ("sampler", "batch_sampler"):
        if by_index and name in options:
            options[name] = SkipBatchSampler(options[name], num_batches)
    if isinstance(loader, LookAheadLoader):
        rest = type(loader)(
            loader.dataset,
            sharing=loader.sharing,
            num_batches_to_skip=0 if by_index else num_batches,
            keeps_remainder=loader.keeps_remainder,
            epoch=loader.epoch,
            shared_generator=loader.shared_generator,
            **options,
        )
        rest.announce = loader.announce
        return rest
    plain: DataLoader[Any] = DataLoader(loader.dataset, **options)
    return plain if by_index else _SkippedIterable(plain, num_batches)


def move_to_device(data: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Move every tensor of a batch (nested mappings, lists, tuples) to ``device``, keeping the containers' types."""
    if isinstance(data, Mapping) and hasattr(data, "to"):
        # A `BatchEncoding` knows more than its tensors.
        return data.to(device, non_blocking=non_blocking) if non_blocking else data.to(device)
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), data)


class _SkippedIterable:
    """Any iterable of batches without its first ones."""

    def __init__(self, batches: Iterable[Any], num_batches: int) -> None:
        self.batches = batches
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self.batches):
            if index >= self.num_batches:
                yield batch


def with_last_flag(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Give each batch with whether it is the last, one batch late."""
    try:
        current = next(batches)
    except StopIteration:
        return
    for upcoming in batches:
        yield current, False
        current = upcoming
    yield current, True


def carried_options(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the options of ``loader`` that have nothing to do with how it batches."""
    return {name: getattr(loader, name) for name in _CARRIED_OPTIONS if hasattr(loader, name)}


def batching_options(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the options of ``loader`` that say how it batches."""
    if isinstance(loader.dataset, IterableDataset) or (loader.batch_size is None and loader.batch_sampler is None):
        # Where the sampler gives whole batches, the loader itself makes none.
        sampler = {"sampler": loader.sampler} if isinstance(loader.sampler, BatchSampler) else {}
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last, **sampler}
    return {"batch_sampler": loader.batch_sampler}
