"""Loaders of combined batches, made of plain loaders."""

from typing import Any

from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from portico.errors import InputError
from portico.ipu import backend

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
