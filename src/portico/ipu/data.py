"""Combined batches: their loaders, and the padding of batches that are not full.

A combined batch holds the rows of one call: micro-batch x replicas x gradient accumulation x device iterations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from portico.compat.annotations import Examples, Loader
from portico.compat.lightning import plain_batch_sampler
from portico.compat.tree import map_tensors
from portico.errors import InputError
from portico.ipu import backend

# ---- Loaders ----

_LOADER_OPTIONS = (
    "collate_fn",
    "generator",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


def poptorch_loader(loader: "Loader", options: "backend.Options", *, training: bool) -> "backend.DataLoader":
    """Return a ``poptorch.DataLoader`` of combined batches over the data of a loader of micro-batches."""
    carried = _get_loader_options(loader)
    if isinstance(loader.dataset, IterableDataset):
        # Programs take full batches only.
        return backend.DataLoader(options, loader.dataset, loader.batch_size, drop_last=True, **carried)
    batches = plain_batch_sampler(loader.batch_sampler)
    if type(batches) is not BatchSampler:
        raise InputError(
            f"The loader has a batch sampler of type {type(batches).__name__}, whose batches cannot be combined; give "
            "it a `sampler` and a `batch_size`, or pass a `poptorch.DataLoader`."
        )
    # A program cannot train on an incomplete batch.
    drop_last = training or batches.drop_last
    return backend.DataLoader(
        options, loader.dataset, batches.batch_size, sampler=batches.sampler, drop_last=drop_last, **carried
    )


def drop_last_batch(loader: "Loader") -> "Loader":
    """Return a loader of the same batches without an incomplete last one."""
    if not isinstance(loader.dataset, IterableDataset):
        batch_sampler: Any = loader.batch_sampler
        batch_sampler.drop_last = True
        return loader
    return DataLoader(loader.dataset, loader.batch_size, drop_last=True, **_get_loader_options(loader))


def _get_loader_options(loader: "Loader") -> dict[str, Any]:
    return {name: getattr(loader, name) for name in _LOADER_OPTIONS}


class PrefetchLoader:
    """Loads batches while programs run.

    Datasets that draw random numbers should be loaded by workers: in this process they would share the generators
    with the training.
    """

    def __init__(self, loader: "Loader", *, batch_size: int, rebatches: bool, drop_last: bool) -> None:
        self.loader: Any = loader
        self.total_batch_size = batch_size
        self._batches = _Batches(loader, batch_size if rebatches else None, drop_last=drop_last)

    @property
    def dataset(self) -> Examples:
        return self.loader.dataset

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        yield from backend.AsynchronousDataAccessor(self._batches)


class _Batches:
    """The batches of a loader as plain dicts, which is all the accessor takes, cut to ``size`` rows if that is set."""

    def __init__(self, loader: "Loader", size: int | None, *, drop_last: bool) -> None:
        self._loader: Any = loader
        self._size = size
        self._drop_last = drop_last

    def __len__(self) -> int:
        if self._size is None:
            return len(self._loader)
        full, rest = divmod(len(self._loader.dataset), self._size)
        return full + bool(rest and not self._drop_last)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        size = self._size
        rest: dict[str, Any] = {}
        for batch in self._loader:
            if size is None:
                yield dict(batch)
                continue
            rest = {name: torch.cat([value, batch[name]]) for name, value in rest.items()} if rest else dict(batch)
            while num_rows(rest) >= size:
                yield {name: value[:size] for name, value in rest.items()}
                rest = {name: value[size:] for name, value in rest.items()}
        if rest and num_rows(rest) and not self._drop_last:
            yield rest


# ---- Padding ----

_IGNORED_LABEL = -100
# The question answering heads of transformers ignore positions beyond the sequence, but clamp negative ones to 0.
_IGNORED_POSITION = 2**30


def num_rows(inputs: Mapping[str, Any]) -> int:
    return next(len(tensor) for tensor in inputs.values() if isinstance(tensor, Tensor) and tensor.dim())


def pad_rows(inputs: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return a batch of ``size`` rows, in which the real rows are repeated."""
    rows = num_rows(inputs)
    return dict(inputs) if rows == size else select_rows(inputs, rows, torch.arange(size) % rows)


def select_rows(values: Mapping[str, Any], size: int, index: slice | Tensor) -> dict[str, Any]:
    """Return some rows of nested tensors; those that do not have ``size`` rows stay as they are."""
    selected: dict[str, Any] = map_tensors(
        lambda tensor: tensor[index] if tensor.dim() and len(tensor) == size else tensor, dict(values)
    )
    return selected


def ignore_padded_labels(inputs: dict[str, Any], rows: int, label_names: Sequence[str]) -> dict[str, Any]:
    """Return a padded batch in which the labels of all but the first ``rows`` rows are ignored by losses.

    Floating-point labels have no such value (see :func:`evaluation_loss`).
    """
    marked = dict(inputs)
    for name in label_names:
        labels = inputs.get(name)
        if isinstance(labels, Tensor) and labels.dim() and not labels.is_floating_point():
            marked[name] = labels.clone()
            marked[name][rows:] = _IGNORED_POSITION if name.endswith("_positions") else _IGNORED_LABEL
    return marked


def evaluation_loss(
    losses: Tensor,
    inputs: Mapping[str, Any],
    run: Callable[[dict[str, Any]], Tensor],
    *,
    size: int,
    micro_batch_size: int,
    label_names: Sequence[str],
    count: Callable[[dict[str, Any], int], Tensor] | None = None,
) -> Tensor:
    """Return the mean loss over the rows of a batch that was padded.

    Losses ignore the integer labels of padding. Floating-point labels cannot be ignored: the rows of an incomplete
    micro-batch run again, each filling a micro-batch, whose mean loss is then the loss of the row.

    Args:
        losses: Mean loss of each micro-batch, padding included.
        inputs: The real rows.
        run: Returns the losses of another batch of ``size`` rows.
        size: Rows of the padded batch.
        micro_batch_size: Rows of a micro-batch.
        label_names: Names of the labels in ``inputs``.
        count: Returns the weight of a micro-batch with some real rows; by default their number.
    """
    rows = num_rows(inputs)
    complete = rows - rows % micro_batch_size
    labels = [inputs.get(name) for name in label_names]
    if complete == rows or not any(isinstance(label, Tensor) and label.is_floating_point() for label in labels):
        starts = range(0, rows, micro_batch_size)
        sizes = [min(micro_batch_size, rows - start) for start in starts]
        if count is None:
            weights = torch.tensor(sizes, dtype=torch.float32)
        else:
            parts = [select_rows(inputs, rows, slice(start, start + micro_batch_size)) for start in starts]
            weights = torch.stack([count(*part) for part in zip(parts, sizes, strict=True)]).float()
        # A micro-batch whose labels are all ignored has no mean loss: it is NaN, and 0 x NaN is NaN.
        counted = losses.float().reshape(-1)[: len(weights)]
        return torch.where(weights > 0, counted * weights, 0.0).sum() / weights.sum()
    total = losses.float().reshape(-1)[: complete // micro_batch_size].sum() * micro_batch_size
    step = size // micro_batch_size
    for start in range(complete, rows, step):
        chosen = torch.arange(start, min(start + step, rows))
        batch = pad_rows(select_rows(inputs, rows, chosen.repeat_interleave(micro_batch_size)), size)
        total = total + run(batch).float().reshape(-1)[: len(chosen)].sum()
    return total / rows
