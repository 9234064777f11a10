"""What a loader refuses, and what it warns of."""

import logging
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from portico.ipu.emulator.data.sharding import ShardedIterable
from portico.ipu.emulator.enums import DataLoaderMode

logger = logging.getLogger(__name__)


def warn_of_rest(dataset: Any, combined_batch_size: int) -> None:
    """Warn of a last batch that is not full, if there is one."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return
    rest = len(dataset) % combined_batch_size
    if rest:
        logger.warning(
            "The data have %d rows, which is no multiple of the combined batch size %d: the last batch has %d, and a "
            "program that was compiled for full batches refuses it. Pad it, or set drop_last=True.",
            len(dataset),
            combined_batch_size,
            rest,
        )


def warn_of_repetition(dataset: Any, num_workers: int, options: Mapping[str, Any]) -> None:
    """Warn of workers that each load all of an iterable data set."""
    if num_workers > 1 and options.get("worker_init_fn") is None and not isinstance(dataset, ShardedIterable):
        logger.warning(
            "The data set is iterable and has no worker_init_fn, so the %d workers return %d times each element; "
            "let worker_init_fn give each worker its part.",
            num_workers,
            num_workers,
        )


def check_async_options(async_options: Mapping[str, Any] | None, batch_size: int | None, mode: DataLoaderMode) -> None:
    """Refuse options of an accessor that contradict its loader.

    Raises:
        AssertionError: Names the option.
    """
    if async_options and "rebatched_size" in async_options:
        raise AssertionError(
            "rebatched_size in async_options is decided by the loader; choose the mode AsyncRebatched and "
            "rebatched_worker_size instead"
        )
    if batch_size is None and mode is DataLoaderMode.AsyncRebatched:
        raise AssertionError("AsyncRebatched needs a batch_size to rebatch to; None was given")
