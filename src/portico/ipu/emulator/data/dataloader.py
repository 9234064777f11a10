"""``DataLoader``: batches as large as a call of a program takes."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

from portico.ipu.emulator.data.accessor import AsynchronousDataAccessor
from portico.ipu.emulator.data.combined_sampler import CombinedBatchSampler
from portico.ipu.emulator.data.loader_checks import check_async_options, warn_of_repetition, warn_of_rest
from portico.ipu.emulator.data.rebatching import rebatched
from portico.ipu.emulator.data.sharding import process_part
from portico.ipu.emulator.enums import DataLoaderMode
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.options.options import Options


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads combined batches: micro-batch x device iterations x input groups x gradient accumulation.

    Args:
        options: Of the program; frozen here.
        dataset: Map-style or iterable data.
        batch_size: Rows of a micro-batch; ``None`` leaves batching to the data.
        shuffle: Draw rows in random order.
        num_workers: Processes that load.
        drop_last: Leave out a last batch that is not full.
        persistent_workers: Keep the processes between epochs; by default if there are any.
        auto_distributed_partitioning: Give each of several processes a part of the data.
        mode: Load in the caller's time, ahead of it, or ahead of it in smaller batches.
        async_options: Of the accessor that loads ahead.
        rebatched_worker_size: Rows that a worker loads at once, for ``AsyncRebatched``.
        batch_sampler: Batches of indices, each of ``batch_size`` rows, combined here.
        **kwargs: Of ``torch.utils.data.DataLoader``.

    Raises:
        Error: If arguments exclude each other.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: Mapping[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        options.freeze()
        self._options = options
        self._factor = (
            options.device_iterations
            * options.Training.gradient_accumulation
            * (options.replication_factor // options.input_group_size)
        )
        self._combined_batch_size = None if batch_size is None else batch_size * self._factor
        self._leaves_out_rest = drop_last
        self._accessor: AsynchronousDataAccessor | None = None
        self._worker_size: int | None = None
        check_async_options(async_options, batch_size, mode)
        is_iterable = isinstance(dataset, IterableDataset)
        if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
            dataset = process_part(dataset, options, shuffle=bool(shuffle))
        if is_iterable:
            warn_of_repetition(dataset, num_workers, kwargs)
        common: dict[str, Any] = {
            "num_workers": num_workers,
            "persistent_workers": num_workers > 0 if persistent_workers is None else persistent_workers,
            **kwargs,
        }
        if batch_sampler is not None:
            if batch_size not in (1, None) or shuffle:
                raise Error(
                    "batch_sampler is mutually exclusive with batch_size and shuffle: it decides about both; leave "
                    "them out."
                )
            common["batch_sampler"] = CombinedBatchSampler(batch_sampler, self._factor, drop_last=drop_last)
            sized = getattr(batch_sampler, "batch_size", None)
            self._combined_batch_size = None if sized is None else sized * self._factor
        elif self._combined_batch_size is None:
            common["batch_size"] = None
            common["shuffle"] = shuffle
        else:
            if not drop_last:
                warn_of_rest(dataset, self._combined_batch_size)
            self._worker_size = self._size_of_worker_batches(mode, drop_last, rebatched_worker_size)
            common["batch_size"] = self._worker_size or self._combined_batch_size
            common["drop_last"] = drop_last and self._worker_size is None
            common["shuffle"] = shuffle
        super().__init__(dataset, **common)
        if mode is not DataLoaderMode.Sync:
            self._accessor = AsynchronousDataAccessor(_Rows(self), **dict(async_options or {}))

    # Sizes

    @property
    def combinedBatchSize(self) -> int | None:
        """Rows that a call of the program takes; ``None`` where the data batches itself."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """Options of the program."""
        return self._options

    def __len__(self) -> int:
        if self._worker_size is None or self._combined_batch_size is None:
            return super().__len__()
        num_rows = len(self.dataset)  # type: ignore[arg-type]
        full, rest = divmod(num_rows, self._combined_batch_size)
        return full + bool(rest and not self._leaves_out_rest)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self.load() if self._accessor is None else iter(self._accessor)

    def load(self) -> Iterator[Any]:
        """Yield combined batches without loading ahead."""
        batches = super().__iter__()
        if self._worker_size is None or self._combined_batch_size is None:
            return batches
        return rebatched(batches, self._combined_batch_size, drop_last=self._leaves_out_rest)

    def terminate(self) -> None:
        """End the processes that load."""
        if self._accessor is not None:
            self._accessor.terminate()
        workers = getattr(self, "_iterator", None)
        if workers is not None and hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()
            self._iterator = None

    # Checks

    def _size_of_worker_batches(
        self, mode: DataLoaderMode, drop_last: bool, rebatched_worker_size: int | None
    ) -> int | None:
        combined = self._combined_batch_size
        assert combined is not None
        if mode is not DataLoaderMode.AsyncRebatched and (mode is DataLoaderMode.Sync or drop_last):
            return None
        if rebatched_worker_size is None:
            return combined
        if not 0 < rebatched_worker_size <= combined:
            raise AssertionError(
                f"rebatched_worker_size must be at most the combined batch size {combined} and at least 1; "
                f"{rebatched_worker_size} was given"
            )
        return rebatched_worker_size


class _Rows:
    """The batches of a loader, as its accessor sees them."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return self._loader.load()
