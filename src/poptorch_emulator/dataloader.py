"""``DataLoader``: combined batches, as large as a call of a program takes, which may be loaded ahead of the calls."""

import logging
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, IterableDataset

from poptorch_emulator.batches import BatchLayout
from poptorch_emulator.containers import leaves_of, map_structure
from poptorch_emulator.enums import DataLoaderMode, SharingStrategy
from poptorch_emulator.errors import Error, require_type
from poptorch_emulator.options import Options

logger = logging.getLogger(__name__)


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads combined batches: micro-batch x device iterations x input groups x gradient accumulation.

    Args:
        options: Options of the program; frozen here.
        dataset: Map-style or iterable data.
        batch_size: Rows of a micro-batch; ``None`` if the data is already batched.
        shuffle: Draw rows in random order.
        num_workers: Worker processes.
        drop_last: Leave out a last batch that is not full.
        persistent_workers: Keep the processes between epochs; the default if there are any.
        auto_distributed_partitioning: Give each of several processes a part of map-style data.
        mode: Load in the caller's time, ahead of it, or ahead of it in smaller batches.
        async_options: Arguments of :class:`AsynchronousDataAccessor`.
        rebatched_worker_size: Rows that a worker loads at once, for ``AsyncRebatched``.
        batch_sampler: Batches of indices, each of ``batch_size`` rows, which are combined here.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``.

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
        require_type(options, Options, "options")
        options.freeze()
        self._options = options
        factor = BatchLayout.from_options(options).num_parts
        self._combined_batch_size = None if batch_size is None else batch_size * factor
        self._drops_rest = drop_last
        self._accessor: AsynchronousDataAccessor | None = None
        # Rows that a worker loads at once, where they are not a combined batch.
        self._worker_size: int | None = None
        if async_options and "rebatched_size" in async_options:
            raise AssertionError(
                "rebatched_size in async_options is decided by the loader; choose the mode AsyncRebatched and "
                "rebatched_worker_size instead"
            )
        if batch_size is None and mode is DataLoaderMode.AsyncRebatched:
            raise AssertionError("AsyncRebatched needs a batch_size to rebatch to; None was given")
        self._part: _ProcessPart | None = None
        if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
            dataset = _ProcessPart(dataset, options, self._combined_batch_size, drop_last=drop_last)
            if shuffle:
                # The processes share one order, which the part draws.
                self._part, shuffle = dataset, None
                self._part.prepare_to_shuffle()
        _warn_of_repetition(dataset, num_workers, kwargs)
        sampling: dict[str, Any] = {"batch_size": None, "shuffle": shuffle}
        if batch_sampler is not None:
            if batch_size not in (1, None) or shuffle:
                raise Error(
                    "batch_sampler is mutually exclusive with batch_size and shuffle, because it decides both; leave "
                    "them out."
                )
            sampling = {"batch_sampler": _CombinedBatchSampler(batch_sampler, factor, drop_last)}
            size = getattr(batch_sampler, "batch_size", None)
            self._combined_batch_size = None if size is None else size * factor
        elif self._combined_batch_size is not None:
            if not drop_last:
                _warn_of_rest(dataset, self._combined_batch_size)
            self._worker_size = self._choose_worker_size(mode, rebatched_worker_size)
            sampling["batch_size"] = self._worker_size or self._combined_batch_size
            sampling["drop_last"] = drop_last and self._worker_size is None
        super().__init__(
            dataset,
            num_workers=num_workers,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            **sampling,
            **kwargs,
        )
        if mode is not DataLoaderMode.Sync:
            self._accessor = AsynchronousDataAccessor(self, **dict(async_options or {}))

    def _choose_worker_size(self, mode: DataLoaderMode, rebatched_worker_size: int | None) -> int | None:
        combined = self._combined_batch_size
        assert combined is not None
        if mode is not DataLoaderMode.AsyncRebatched and (mode is DataLoaderMode.Sync or self._drops_rest):
            return None
        if rebatched_worker_size is None:
            return combined
        if not 0 < rebatched_worker_size <= combined:
            raise AssertionError(
                f"rebatched_worker_size must be at most the combined batch size {combined} and at least 1; "
                f"{rebatched_worker_size} was given"
            )
        return rebatched_worker_size

    @property
    def combinedBatchSize(self) -> int | None:
        """Rows that a call of the program takes; ``None`` if the data is already batched."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        return self._options

    def __len__(self) -> int:
        if self._worker_size is None or self._combined_batch_size is None:
            return super().__len__()
        rows: Any = self.dataset
        full, rest = divmod(len(rows), self._combined_batch_size)
        return full + bool(rest and not self._drops_rest)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._part is not None:
            self._part.shuffle()
        return self.load() if self._accessor is None else iter(self._accessor)

    def load(self) -> Iterator[Any]:
        """Yield combined batches without loading ahead."""
        batches = super().__iter__()
        if self._worker_size is None or self._combined_batch_size is None:
            return batches
        return rebatch(batches, self._combined_batch_size, drop_last=self._drops_rest)

    def terminate(self) -> None:
        """Stop the processes that load."""
        if self._accessor is not None:
            self._accessor.terminate()
        workers = getattr(self, "_iterator", None)
        if workers is not None and hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()
            self._iterator = None


def _warn_of_rest(dataset: Any, combined_batch_size: int) -> None:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return
    rest = len(dataset) % combined_batch_size
    if rest:
        logger.warning(
            "The data has %d rows, which is not a multiple of the combined batch size %d: the last batch has %d, and "
            "a program that was compiled for full batches refuses it. Pad it, or set drop_last=True.",
            len(dataset),
            combined_batch_size,
            rest,
        )


def _warn_of_repetition(dataset: Any, num_workers: int, loader_options: Mapping[str, Any]) -> None:
    if not isinstance(dataset, IterableDataset):
        return
    if num_workers > 1 and loader_options.get("worker_init_fn") is None:
        logger.warning(
            "The data set is iterable and has no worker_init_fn, so the %d workers return each element %d times; "
            "let worker_init_fn give each worker its part.",
            num_workers,
            num_workers,
        )


# ---- Parts and combinations of the data ----


class _ProcessPart(Dataset[Any]):
    """The rows of one of several processes: as many full combined batches as the others get, or a share of all rows.

    Raises:
        AssertionError: If the data is iterable or batched already, so that it has no rows to count.
    """

    def __init__(self, dataset: Any, options: Options, combined_batch_size: int | None, *, drop_last: bool) -> None:
        if isinstance(dataset, IterableDataset):
            raise AssertionError(
                "auto_distributed_partitioning not supported for IterableDataset; set it to False, and let the data "
                "set return the part of `options.Distributed.processId`"
            )
        if combined_batch_size is None:
            raise AssertionError("batch_size=None not allowed when using auto_distributed_partitioning")
        index = options.Distributed.processId
        count = options.Distributed.numProcesses
        self._dataset = dataset
        share, rest = divmod(len(dataset), count)
        if drop_last:
            self._length = share - share % combined_batch_size
            self._start = index * self._length
            rest = len(dataset) % self._length if self._length else 0
        else:
            self._length = share + (index < rest)
            self._start = index * share + min(index, rest)
            rest = 0
        self._rest = rest
        # Rows of the order before the first of an epoch: 0 and `rest` by turns.
        self._skipped = 0
        self._seed: int | None = options.random_seed
        self._generator = torch.Generator()
        self._order: Tensor | None = None

    def prepare_to_shuffle(self) -> None:
        if self._seed is None:
            raise AssertionError(
                "Shuffled data of several processes need poptorch.Options.randomSeed, so that all of them draw the "
                "same order"
            )
        self._generator.manual_seed(self._seed)
        # Shared, so that worker processes see the order of each epoch.
        self._order = torch.arange(len(self._dataset)).share_memory_()

    def shuffle(self) -> None:
        """Draw the order of the next epoch."""
        assert self._order is not None
        self._skipped = self._rest - self._skipped
        self._order.copy_(torch.randperm(len(self._order), generator=self._generator).roll(-self._skipped))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        row = self._start + index
        return self._dataset[row if self._order is None else int(self._order[row])]


class _CombinedBatchSampler(BatchSampler):
    """Joins the batches of a batch sampler, where torch's joins the indices of a sampler."""

    def __iter__(self) -> Iterator[list[int]]:
        windows: Iterator[Any] = super().__iter__()
        return (list(chain.from_iterable(window)) for window in windows)


def rebatch(batches: Iterable[Any], size: int, *, drop_last: bool) -> Iterator[Any]:
    """Yield batches of ``size`` rows from batches of any size."""
    rest: Any = None
    for batch in batches:
        rest = batch if rest is None else _concatenate(rest, batch)
        while _num_rows(rest) >= size:
            yield _rows(rest, 0, size)
            rest = _rows(rest, size, _num_rows(rest))
    if rest is not None and _num_rows(rest) and not drop_last:
        yield rest


def _rows(batch: Any, start: int, end: int) -> Any:
    return map_structure(lambda leaf: leaf[start:end], batch)


def _num_rows(batch: Any) -> int:
    return len(leaves_of(batch)[0])


def _concatenate(first: Any, second: Any) -> Any:
    leaves = iter(leaves_of(second))
    return map_structure(lambda leaf: torch.cat([leaf, next(leaves)]), first)


# ---- Loading ahead ----

_END = object()


class AsynchronousDataAccessor:
    """Loads batches ahead in a thread, where `poptorch` uses a process and shared memory.

    Batches may be tensors, lists or tuples of them, or flat dicts of them.

    Args:
        dataset: Sized iterable of batches.
        buffer_size: Largest number of batches that are ready.
        miss_sleep_time_in_ms: Ignored, because waiting for a thread costs nothing.
        load_indefinitely: Ignored: each epoch begins when it is iterated over.
        early_preload: Ignored, likewise.
        sharing_strategy: Ignored: threads share their memory.
        rebatched_size: Rows of the batches, which are made from the batches of ``dataset``; the remainder is dropped.

    Raises:
        Error: While iterating, for a batch of another kind.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.FileSystem,
        rebatched_size: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._rebatched_size = rebatched_size
        self._buffer_size = buffer_size
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return len(self._dataset)

    def terminate(self) -> None:
        """End the iteration; batches that were loaded ahead are dropped."""
        self._stopped.set()

    def __iter__(self) -> Iterator[Any]:
        self._stopped = stopped = threading.Event()
        ready: queue.Queue[Any] = queue.Queue(self._buffer_size)
        # The `__iter__` of an asynchronous loader leads back here.
        batches = self._dataset.load() if isinstance(self._dataset, DataLoader) else self._dataset
        if self._rebatched_size is not None:
            batches = rebatch(batches, self._rebatched_size, drop_last=True)
        # Not a thread of `concurrent.futures`: worker processes that are forked in one fail when they exit.
        loader = threading.Thread(target=_load, args=(batches, ready, stopped), daemon=True)
        loader.start()
        try:
            while not stopped.is_set() and (batch := ready.get()) is not _END:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            stopped.set()
            # A loader that waits to put a batch needs room, and then to put the end.
            while loader.is_alive():
                with suppress(queue.Empty):
                    ready.get(timeout=0.01)


def _load(batches: Iterable[Any], ready: "queue.Queue[Any]", stopped: threading.Event) -> None:
    try:
        for batch in batches:
            _check_batch(batch)
            ready.put(batch)
            if stopped.is_set():
                break
        # Also after `terminate`, as another thread may wait for a batch.
        ready.put(_END)
    except BaseException as error:
        # Raised in the thread that iterates.
        ready.put(error)


def _check_batch(batch: Any) -> None:
    leaves = batch if isinstance(batch, list | tuple) else [batch]
    if type(batch) is dict:
        leaves = list(batch.values())
    wrong = next((leaf for leaf in leaves if not isinstance(leaf, Tensor | list | tuple)), None)
    if wrong is not None:
        raise Error(
            f"A batch holds a {type(wrong).__name__}, which an asynchronous loader cannot hand over; let `collate_fn` "
            "return tensors, lists of tensors, or a plain dict of tensors."
        )
