"""Training data without a last batch that is not full: a program trains on full ones only."""

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

_CARRIED_OPTIONS = (
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
    carried = {name: getattr(loader, name) for name in _CARRIED_OPTIONS}
    return DataLoader(loader.dataset, loader.batch_size, drop_last=True, **carried)
