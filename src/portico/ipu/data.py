"""Loaders of combined batches, made of plain loaders."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.emulator.data.rebatching import rebatched
from portico.nested import map_tensors

_CARRIED_OPTIONS = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")


def ipu_loader(loader: "DataLoader[Any]", options: Any, *, training: bool) -> Any:
    """Return a loader of the same data in combined batches.

    Args:
        loader: A plain loader, whose batch size is that of a micro-batch.
        options: Of the program.
        training: Leave out a last batch that is not full: a program takes full ones only.

    Raises:
        InputError: If the loader has a batch sampler of another kind, whose batches cannot be counted.
    """
    carried = {name: getattr(loader, name) for name in _CARRIED_OPTIONS}
    carried["persistent_workers"] = loader.persistent_workers
    if isinstance(loader.dataset, IterableDataset):
        return backend.DataLoader(options, loader.dataset, loader.batch_size, drop_last=True, **carried)
    batches: Any = loader.batch_sampler
    if isinstance(batches, _IndexBatchSamplerWrapper):
        # Lightning has wrapped it to know the indices of predictions.
        batches = batches._batch_sampler
    if type(batches) is not BatchSampler:
        raise InputError(
            f"The loader has a batch sampler of type {type(batches).__name__}, which a loader of combined batches "
            "cannot take apart; give it a `sampler` and a `batch_size`, or pass a `poptorch.DataLoader`."
        )
    drop_last = training or batches.drop_last
    return backend.DataLoader(
        options, loader.dataset, batches.batch_size, sampler=batches.sampler, drop_last=drop_last, **carried
    )


_CARRIED_OPTIONS_remainder = (
    "collate_fn",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


def without_remainder(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """Return a loader of the same batches without a last one that is not full."""
    if not isinstance(loader.dataset, IterableDataset):
        loader.batch_sampler.drop_last = True  # type: ignore[union-attr]
        return loader
    carried = {name: getattr(loader, name) for name in _CARRIED_OPTIONS_remainder}
    return DataLoader(loader.dataset, loader.batch_size, drop_last=True, **carried)


class AheadLoader:
    """Loads batches while programs run.

    Data that draw random numbers should be loaded by workers: here they are drawn while others are.

    Args:
        loader: Loads in the caller's time.
        batch_size: Rows of a combined batch.
        rebatches: Whether the loader's batches have other sizes, and are joined and cut.
        drop_last: Leave out a last batch that is not full.
    """

    def __init__(self, loader: Any, *, batch_size: int, rebatches: bool, drop_last: bool) -> None:
        self.loader = loader
        self.total_batch_size = batch_size
        self._rebatches = rebatches
        self._drop_last = drop_last

    @property
    def dataset(self) -> Any:
        """The data."""
        return self.loader.dataset

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of ``epoch``."""
        self.loader.set_epoch(epoch)

    def __len__(self) -> int:
        if not self._rebatches:
            return len(self.loader)
        full, rest = divmod(len(self.dataset), self.total_batch_size)
        return full + bool(rest and not self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        yield from backend.AsynchronousDataAccessor(_PlainBatches(self))

    def batches(self) -> Iterator[Any]:
        """Yield the batches without loading ahead, as plain dicts: nothing else can be handed over."""
        batches = (dict(batch) for batch in self.loader)
        if self._rebatches:
            return rebatched(batches, self.total_batch_size, drop_last=self._drop_last)
        return batches


class _PlainBatches:
    def __init__(self, ahead: AheadLoader) -> None:
        self._ahead = ahead

    def __len__(self) -> int:
        return len(self._ahead)

    def __iter__(self) -> Iterator[Any]:
        return self._ahead.batches()


_IGNORED_LABEL = -100
# Extractive heads ignore positions beyond the sequence; a negative one they take for the first token.
_IGNORED_POSITION = 2**30


def num_rows(inputs: Mapping[str, Any]) -> int:
    """Return the rows of a batch."""
    return next(len(tensor) for tensor in inputs.values() if isinstance(tensor, Tensor) and tensor.dim())


def filled_up(inputs: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return a batch of ``size`` rows: those there are, over and over."""
    rows = num_rows(inputs)
    if rows == size:
        return dict(inputs)
    index = torch.arange(size) % rows
    return {name: _rows(value, index, rows) for name, value in inputs.items()}


def with_ignored_labels(inputs: dict[str, Any], rows: int, label_names: Sequence[str]) -> dict[str, Any]:
    """Return a filled-up batch whose repeated rows have labels that losses leave out.

    Labels that are no integers cannot be left out (see :func:`row_by_row`).
    """
    marked = dict(inputs)
    for name in label_names:
        labels = inputs.get(name)
        if isinstance(labels, Tensor) and labels.dim() and not labels.is_floating_point():
            marked[name] = labels.clone()
            marked[name][rows:] = _IGNORED_POSITION if name.endswith("_positions") else _IGNORED_LABEL
    return marked


def has_float_labels(inputs: Mapping[str, Any], label_names: Sequence[str]) -> bool:
    """Tell whether a batch has labels that no loss leaves out."""
    labels = [inputs.get(name) for name in label_names]
    return any(isinstance(value, Tensor) and value.is_floating_point() for value in labels)


def row_by_row(
    inputs: Mapping[str, Any], rows: range, *, size: int, micro_batch_size: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield batches in which each row fills a micro-batch, whose mean loss then is that of the row.

    Args:
        inputs: A batch.
        rows: Which of its rows.
        size: Rows of a call.
        micro_batch_size: Rows of a micro-batch.

    Yields:
        A batch of ``size`` rows, and how many micro-batches at its beginning have a row of their own.
    """
    num_all = num_rows(inputs)
    for start in range(rows.start, rows.stop, size // micro_batch_size):
        chosen = torch.arange(start, min(start + size // micro_batch_size, rows.stop))
        index = chosen.repeat_interleave(micro_batch_size)
        yield filled_up({name: _rows(value, index, num_all) for name, value in inputs.items()}, size), len(chosen)


def cut_back(outputs: dict[str, Any], rows: int, size: int) -> dict[str, Any]:
    """Return outputs without the rows beyond ``rows``; tensors without ``size`` rows stay as they are."""
    return {
        name: map_tensors(lambda tensor: tensor[:rows] if tensor.dim() and len(tensor) == size else tensor, value)
        for name, value in outputs.items()
    }


def weighted_loss(losses: Tensor, rows: int, size: int) -> Tensor:
    """Return the mean loss over real rows, from the mean losses of micro-batches.

    Args:
        losses: One loss for each micro-batch, in the order of the rows; or a single one.
        rows: Real rows.
        size: All rows.
    """
    losses = losses.float().reshape(-1)
    per_micro_batch = size // len(losses)
    starts = torch.arange(len(losses)) * per_micro_batch
    weights = (rows - starts).clamp(0, per_micro_batch).float()
    # The loss of a micro-batch without real rows may be NaN.
    return (losses[weights > 0] * weights[weights > 0]).sum() / rows


def _rows(value: Any, index: Tensor, rows: int) -> Any:
    return map_tensors(lambda tensor: tensor[index] if tensor.dim() and len(tensor) == rows else tensor, value)
