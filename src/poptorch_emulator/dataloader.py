"""Batches of workers, joined and cut to combined ones."""

import logging
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Sampler, Subset

from poptorch_emulator.containers import map_structure
from poptorch_emulator.enums import DataLoaderMode
from poptorch_emulator.errors import Error
from poptorch_emulator.options import Options


def rebatched(batches: Iterable[Any], size: int, *, drop_last: bool) -> Iterator[Any]:
    """Yield batches of ``size`` rows from batches of any size.

    Args:
        batches: Nested tensors, with rows along dimension 0.
        size: Rows of a batch.
        drop_last: Leave out a last one with fewer.
    """
    rest: Any = None
    for batch in batches:
        rest = batch if rest is None else _joined(rest, batch)
        while _num_rows(rest) >= size:
            yield _rows(rest, 0, size)
            rest = _rows(rest, size, _num_rows(rest))
    if rest is not None and _num_rows(rest) and not drop_last:
        yield rest


def _rows(batch: Any, start: int, end: int) -> Any:
    return map_structure(lambda leaf: leaf[start:end], batch)


def _num_rows(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return len(batch)
    return _num_rows(next(iter(batch.values() if isinstance(batch, Mapping) else batch)))


def _joined(first: Any, second: Any) -> Any:
    leaves = iter(_leaves(second))
    return map_structure(lambda leaf: torch.cat([leaf, next(leaves)]), first)


def _leaves(batch: Any) -> list[Tensor]:
    leaves: list[Tensor] = []
    map_structure(leaves.append, batch)
    return leaves


class ShardedIterable(IterableDataset[Any]):
    """Every n-th element of iterable data.

    Args:
        dataset: The data.
        index: First element.
        step: n.
    """

    def __init__(self, dataset: Any, index: int, step: int) -> None:
        self._dataset = dataset
        self._index = index
        self._step = step

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._dataset), self._index, None, self._step)


def process_part(dataset: Any, options: Options, *, shuffle: bool) -> Any:
    """Return the part of ``dataset`` that this process reads, all parts equally large.

    Args:
        dataset: Map-style or iterable data.
        options: Say which process this is.
        shuffle: Whether rows are drawn in random order: then parts are drawn from one order of all rows.

    Raises:
        AssertionError: If an order is asked for, but no seed says which: the processes would read the same rows.
    """
    index, count = options.Distributed.processId, options.Distributed.numProcesses
    if isinstance(dataset, IterableDataset):
        return ShardedIterable(dataset, index, count)
    size = len(dataset) // count
    if not shuffle:
        return Subset(dataset, range(index * size, (index + 1) * size))
    if options.random_seed is None:
        raise AssertionError(
            "Shuffled data of several processes need poptorch.Options.randomSeed, so that all of them draw the same "
            "order"
        )
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(options.random_seed)).tolist()
    return Subset(dataset, order[index * size : (index + 1) * size])


class CombinedBatchSampler(Sampler[list[int]]):
    """Joins as many batches as make a combined one.

    Args:
        batch_sampler: Yields lists of indices.
        num_batches: Batches of a combined one.
        drop_last: Leave out a last one that is not full.
    """

    def __init__(self, batch_sampler: Any, num_batches: int, *, drop_last: bool) -> None:
        self.batch_sampler = batch_sampler
        self._num_batches = num_batches
        self._drop_last = drop_last

    def __len__(self) -> int:
        full, rest = divmod(len(self.batch_sampler), self._num_batches)
        return full + bool(rest and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        window: list[list[int]] = []
        for batch in self.batch_sampler:
            window.append(list(batch))
            if len(window) == self._num_batches:
                yield list(chain.from_iterable(window))
                window = []
        if window and not self._drop_last:
            yield list(chain.from_iterable(window))


_END = object()


class AsynchronousDataAccessor:
    """Loads batches ahead, in a thread; a real one does in a process, over shared memory.

    Batches may be tensors, lists or tuples of them, or flat dicts of them.

    Args:
        dataset: Sized iterable of batches.
        buffer_size: Batches that are ready at most.
        miss_sleep_time_in_ms: Kept; waiting costs nothing here.
        load_indefinitely: Begin the next epoch before it is asked for.
        early_preload: Begin before the first is asked for.
        **options: Kept.

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
        **options: Any,
    ) -> None:
        self._dataset = dataset
        self._buffer_size = buffer_size
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return len(self._dataset)

    def terminate(self) -> None:
        """Stop loading."""
        self._stopped.set()

    def __iter__(self) -> Iterator[Any]:
        self._stopped = stopped = threading.Event()
        ready: queue.Queue[Any] = queue.Queue(self._buffer_size)
        loader = threading.Thread(target=_load, args=(self._dataset, ready, stopped), daemon=True)
        loader.start()
        try:
            while (batch := ready.get()) is not _END:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            stopped.set()
            _drain(ready)
            loader.join()


def _load(dataset: Any, ready: "queue.Queue[Any]", stopped: threading.Event) -> None:
    try:
        for batch in dataset:
            _check_batch(batch)
            ready.put(batch)
            if stopped.is_set():
                return
        ready.put(_END)
    except BaseException as error:
        # Raised again where the batch is asked for.
        ready.put(error)


def _drain(ready: "queue.Queue[Any]") -> None:
    # A loader that waits for room would wait for ever.
    while not ready.empty():
        ready.get_nowait()


def _check_batch(batch: Any) -> None:
    if isinstance(batch, Mapping):
        leaves = list(batch.values()) if type(batch) is dict else [batch]
    else:
        leaves = list(batch) if isinstance(batch, list | tuple) else [batch]
    wrong = next((leaf for leaf in leaves if not isinstance(leaf, Tensor | list | tuple)), None)
    if wrong is not None:
        raise Error(
            f"A batch holds a {type(wrong).__name__}, which an asynchronous loader cannot hand over; let `collate_fn` "
            "return tensors, lists of tensors, or a plain dict of tensors."
        )


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
