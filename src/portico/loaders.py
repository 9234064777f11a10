"""Data loaders with the order and the random draws of ``transformers.Trainer``.

Two facts carry bit-identity: a loader draws **one** base seed from the global generator each time it is iterated, and
it fetches **one batch ahead** of the batch it gives, so data sets and collators that draw random numbers do so at the
same moments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from transformers.trainer_pt_utils import find_batch_size

from portico.nested import map_tensors
from portico.samplers import SeededRandomSampler, SkipBatchSampler

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
        device: Where batches are moved; ``None`` leaves them.
        num_batches_to_skip: Batches fetched but not given at the start (for data without indices).
        keeps_remainder: Whether the last, smaller batch is given (``drop_last`` is off).
        epoch: Epoch of the first iteration.
        **options: Options of ``torch.utils.data.DataLoader``.

    Attributes:
        end_of_dataloader: Whether the batch given last is the final one.
        remainder: Examples in the final batch, 0 when it is full, -1 when unknown.
        announce: Context of an iteration, for those who ask which loader is being iterated.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        device: torch.device | None = None,
        num_batches_to_skip: int = 0,
        keeps_remainder: bool = True,
        epoch: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(dataset, **options)
        self.device = device
        self.num_batches_to_skip = num_batches_to_skip
        self.keeps_remainder = keeps_remainder
        self.epoch = epoch
        self.end_of_dataloader = False
        self.remainder = -1
        self.announce: Callable[[LookAheadLoader], AbstractContextManager[Any]] = nullcontext

    @property
    def total_batch_size(self) -> int:
        """Examples in a full batch, over all processes."""
        sized = self if self.batch_sampler is None else self.batch_sampler
        return int(getattr(sized, "batch_size", None) or 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of ``epoch`` in every sampler, and in the data set if it cares."""
        self.epoch = epoch
        sampler: Any = self.batch_sampler
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
        self.end_of_dataloader = False
        self.remainder = self._known_remainder()
        self.set_epoch(self.epoch)
        for index, (batch, is_last) in enumerate(_with_last_flag(super().__iter__())):
            if self.device is not None:
                batch = move_to_device(batch, self.device)
            if is_last:
                self.end_of_dataloader = True
                if isinstance(self.dataset, IterableDataset):
                    self.remainder = find_batch_size(batch) or -1
            if index >= self.num_batches_to_skip:
                yield batch
        self.epoch += 1

    def _known_remainder(self) -> int:
        if not self.keeps_remainder or not hasattr(self.dataset, "__len__"):
            return -1
        return len(self.dataset) % self.total_batch_size


def prepare_loader(loader: Any, *, device: torch.device, data_seed: int | None) -> Any:
    """Return the look-ahead counterpart of a ``DataLoader``; anything else comes back as it is.

    Args:
        loader: Loader to prepare; its random sampler, if it has one, becomes a seeded one.
        device: Where batches are moved.
        data_seed: Seed of the order; ``None`` takes the seed of torch's global generator now.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader, LookAheadLoader):
        return loader
    options = _carried_options(loader)
    if isinstance(loader.dataset, IterableDataset):
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    else:
        options["batch_sampler"] = _seeded(loader.batch_sampler, data_seed)
    return LookAheadLoader(loader.dataset, device=device, keeps_remainder=not loader.drop_last, **options)


def skip_first_batches(loader: Any, num_batches: int) -> Any:
    """Return a loader that goes on after ``num_batches``: by index where there are indices, else by fetching them."""
    if not isinstance(loader, DataLoader):
        return _SkippedIterable(loader, num_batches)
    options = _carried_options(loader)
    by_index = not isinstance(loader.dataset, IterableDataset)
    if by_index:
        options["batch_sampler"] = SkipBatchSampler(loader.batch_sampler, num_batches)
    else:
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if isinstance(loader, LookAheadLoader):
        rest = LookAheadLoader(
            loader.dataset,
            device=loader.device,
            num_batches_to_skip=0 if by_index else num_batches,
            keeps_remainder=loader.keeps_remainder,
            epoch=loader.epoch,
            **options,
        )
        rest.announce = loader.announce
        return rest
    plain: DataLoader[Any] = DataLoader(loader.dataset, **options)
    return plain if by_index else _SkippedIterable(plain, num_batches)


def move_to_device(data: Any, device: torch.device) -> Any:
    """Move every tensor of a batch (nested mappings, lists, tuples) to ``device``, keeping the containers' types."""
    if isinstance(data, Mapping) and hasattr(data, "to"):
        # A `BatchEncoding` knows more than its tensors.
        return data.to(device)
    return map_tensors(lambda tensor: tensor.to(device), data)


class _SkippedIterable:
    """Any iterable of batches without its first ones."""

    def __init__(self, batches: Iterable[Any], num_batches: int) -> None:
        self.batches = batches
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self.batches):
            if index >= self.num_batches:
                yield batch


def _with_last_flag(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    try:
        current = next(batches)
    except StopIteration:
        return
    for upcoming in batches:
        yield current, False
        current = upcoming
    yield current, True


def _carried_options(loader: "DataLoader[Any]") -> dict[str, Any]:
    return {name: getattr(loader, name) for name in _CARRIED_OPTIONS if hasattr(loader, name)}


def _seeded(batch_sampler: Any, data_seed: int | None) -> Any:
    if type(getattr(batch_sampler, "sampler", None)) is RandomSampler:
        batch_sampler.sampler = SeededRandomSampler.like(batch_sampler.sampler, data_seed)
    return batch_sampler
