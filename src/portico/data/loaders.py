"""Data loaders with the order and the random draws of ``transformers.Trainer``.

Results are identical bit for bit because a loader draws **one** base seed from the global generator each time it is
iterated, and fetches **one batch ahead** of the batch it yields, so datasets and collators draw random numbers at the
same moments. Both come from accelerate (``data_loader.py``), which ``transformers.Trainer`` uses.
"""

import math
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from copy import copy
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler
from tqdm.auto import tqdm

from portico import observers
from portico.compat.accelerate import GradientState
from portico.compat.transformers import BatchRebalanceSampler, find_batch_size, has_length, logger
from portico.compat.tree import map_tensors
from portico.data.sharding import BatchSamplerShard, DataLoaderConfig, IterableDatasetShard
from portico.errors import InputError, InputRuntimeError

if TYPE_CHECKING:
    from portico.compat.annotations import Batch, Examples, Loader, Nested

_CARRIED_OPTIONS = (
    "num_workers",
    "persistent_workers",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "collate_fn",
    "pin_memory",
    "timeout",
    "generator",
    "in_order",
)
# What `DataLoaderShard` carries too.
_OPTIONS_OF_SHARDS = ("config", "keeps_remainder", "epoch", "shared_generator", "stateful", "transfer")
Generator = torch.Generator | np.random.Generator | random.Random
_END = object()
# Number of indices of a random order that are converted to Python numbers at a time.
_DRAWN_TOGETHER = 4096


class SeedableRandomSampler(RandomSampler):
    """Random order from a generator seeded with ``seed + epoch``; the global generator is not used.

    This is the order in which ``transformers.Trainer`` trains (accelerate's sampler of the same name). The seed is by
    default the seed of torch's global generator; a ``generator`` among the options is reseeded for each epoch.
    """

    def __init__(self, data_source: Sized, *, seed: int | None = None, **options: Any) -> None:
        super().__init__(data_source, **options)
        self.seed = torch.random.initial_seed() if seed is None else seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.seed + self.epoch)
        if self.replacement:
            yield from super().__iter__()
        else:
            # The order of `RandomSampler`, which holds it as a list, in a tenth of the memory.
            size = len(self.data_source)
            # The numbers do not depend on the type.
            dtype = torch.int32 if size < 2**31 else torch.int64
            # `RandomSampler` draws once more if nothing is left over, which changes the state of the generator.
            for start in range(0, self.num_samples + 1, size):
                order = torch.randperm(size, generator=self.generator, dtype=dtype)
                for part in order[: self.num_samples - start].split(_DRAWN_TOGETHER):
                    yield from part.tolist()
        self.epoch += 1


class SkipBatchSampler(BatchSampler):
    """A batch sampler without its first batches: their indices are drawn, but their data not loaded."""

    batch_size: Any  # an int, or ``None`` where the sampler has no fixed size

    def __init__(self, batch_sampler: BatchSampler, num_batches: int) -> None:
        self.batch_sampler = batch_sampler
        self.batch_size = getattr(batch_sampler, "batch_size", None)
        self.num_processes = getattr(batch_sampler, "num_processes", 1)
        self.split_batches = getattr(batch_sampler, "split_batches", False)
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[list[int]]:
        yield from islice(self.batch_sampler, self.num_batches, None)

    def __len__(self) -> int:
        return max(len(self.batch_sampler) - self.num_batches, 0)


@dataclass(eq=False)
class RestSampler(Sampler[Any]):
    """A sampler without its first examples, whose indices are drawn."""

    sampler: Any
    num_examples: int

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self.sampler, self.num_examples, None)

    def __len__(self) -> int:
        return max(len(self.sampler) - self.num_examples, 0)


@dataclass(eq=False)
class RestOfStream(IterableDataset[Any]):
    """A stream without its first examples, which are read."""

    stream: "Examples"
    num_examples: int

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self.stream, self.num_examples, None)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(epoch)


class DataLoaderShard(DataLoader[Any]):
    """A ``DataLoader`` of one of the processes in ``config``, which knows the last batch when it yields it.

    Attributes:
        end_of_dataloader: Whether the last yielded batch is the final batch.
        remainder: Examples of all processes in the final batch, 0 when it is full, -1 when unknown.
        num_positions_kept: Number of last batches for which :meth:`position_after` knows the position in a stream.
        before_fetch: Called with the number of a batch in this pass, counted from 0, after the order has drawn its
            indices and before its examples are read, in this process and not in workers.
    """

    def __init__(
        self,
        dataset: "Examples",
        *,
        config: DataLoaderConfig,
        num_batches_to_skip: int = 0,
        keeps_remainder: bool = True,
        epoch: int = 0,
        shared_generator: torch.Generator | None = None,
        stateful: "Loader | None" = None,
        position: Mapping[str, Any] | None = None,
        shows_progress: bool = False,
        first_example: int = 0,
        transfer: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, **options)
        self.transfer = transfer  # moves a batch to the device, if the user's data module does so
        self.config = config
        self.num_batches_to_skip = num_batches_to_skip  # fetched but not yielded, for data without indices
        self.stateful = stateful  # the user's loader, which reads the data if it can say how far it has read
        self.position = position  # in the stream, where the next iteration starts
        self.shows_progress = shows_progress  # while batches are skipped
        self.first_example = first_example  # of the order, if its sampler leaves out those before
        self.num_positions_kept = 0
        self.before_fetch: Callable[[int], None] | None = None
        self._positions: deque[tuple[int, Any]] = deque()
        self.keeps_remainder = keeps_remainder  # whether the last, smaller batch is yielded
        self.epoch = epoch  # of the next iteration
        self.shared_generator = shared_generator  # takes the first process's state at the start of each iteration
        self.end_of_dataloader = False
        self.remainder = -1

    @property
    def total_batch_size(self) -> int:
        """Examples in a full batch, over all processes."""
        batches: Any = self.sampler if isinstance(self.sampler, BatchSampler) else self.batch_sampler
        size = int(getattr(batches, "batch_size", None) or 1)
        return size if getattr(batches, "split_batches", False) else size * getattr(batches, "num_processes", 1)

    def set_epoch(self, epoch: int) -> None:
        """Set ``epoch`` on every sampler, and on the dataset if it supports epochs."""
        self.epoch = epoch
        # accelerate stops at the outer batch sampler; transformers 5.23 `_run_epoch` reaches the inner sampler.
        for sampler in samplers_of(self):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # As in accelerate 1.15, a loader that is not read to its end counts as iterated until it is deleted: the
        # loader of the last epoch cuts what is gathered after the training.
        GradientState()._add_dataloader(self)
        if self.shared_generator is not None:
            self.shared_generator.set_state(self.config.broadcast(self.shared_generator.get_state()))
        self.end_of_dataloader = False
        examples: Examples = self.dataset
        is_known = self.keeps_remainder and has_length(examples)
        num_examples = len(examples) - self.first_example if is_known else 0
        self.remainder = num_examples % self.total_batch_size if is_known else -1
        self.set_epoch(self.epoch)
        # The only `iter()` of this pass: each one draws a base seed from the global generator.
        fetched = super().__iter__() if self.stateful is None else iter(self.stateful)
        own_batches = self._batches(iterate_to_end(fetched))
        source = self._seekable() if self.num_positions_kept else None
        self._positions = deque(maxlen=self.num_positions_kept)
        if source is not None:
            own_batches = self._track_position(own_batches, source)
        batches = chain(own_batches, [_END])
        to_skip = self.num_batches_to_skip
        progress = tqdm(total=to_skip, desc="Skipping batches", disable=not (to_skip and self.shows_progress))
        # Pairs, since a batch is the last if nothing follows it (accelerate, `DataLoaderShard.__iter__`).
        for index, (batch, upcoming) in enumerate(pairwise(batches)):
            is_last = upcoming is _END
            prepared = self._prepare(batch, is_last)
            self.end_of_dataloader = is_last
            if index >= to_skip:
                progress.close()
                yield prepared
            else:
                progress.update()
        progress.close()
        self.epoch += 1
        GradientState()._remove_dataloader(self)

    @property
    def _index_sampler(self) -> Iterable[Any]:
        # torch's loader has no public place where indices pass in this process; workers load them elsewhere.
        sampler: Iterable[Any] = super()._index_sampler
        is_observed = observers.active and not isinstance(self.dataset, IterableDataset)
        if (before_fetch := self.before_fetch) is not None and not self.num_workers:
            sampler = _WatchedIndices(sampler, lambda number, drawn: before_fetch(number))
        return _WatchedIndices(sampler, self._notify_observers) if is_observed else sampler

    def _notify_observers(self, number: int, drawn: object) -> None:
        for observer in observers.active:
            observer.on_indices_drawn(self, drawn)

    def _get_iterator(self) -> Any:
        iterator: Any = super()._get_iterator()
        if self.num_workers:
            # A trainer is collected as a reference cycle. Queues in the cycle would be finalized before the iterator,
            # which could then not tell its workers to end, and would wait 5 s for each of them.
            weakref.finalize(iterator, _keep, iterator._index_queues, iterator._workers).atexit = False
        return iterator

    def _track_position(self, batches: Iterator[Any], source: Any) -> Iterator[Any]:
        """Yield the batches, and note after each where the stream ``source`` stands."""
        before = self.position["num_batches"] if self.position else 0
        for num_batches, batch in enumerate(batches, start=before + 1):
            self._positions.append((num_batches, source.state_dict()))
            yield batch

    def _seekable(self) -> Any:
        """Return the object that can save and restore this process's exact position in a stream, or ``None``."""
        # Worker processes hold the state of their dataset, and only a loader that asks them knows it.
        source: object = self.stateful
        if source is None and not self.num_workers:
            source = self.dataset
        is_stream = isinstance(self.dataset, IterableDataset) and _keeps_state(source)
        return source if is_stream and not _forgets_examples(self.dataset) else None

    def position_after(self, num_batches: int) -> dict[str, Any] | None:
        """Return the position in the stream after ``num_batches`` of the epoch, for :func:`skip_first_batches`."""
        state = dict(self._positions).get(num_batches)
        if state is None:
            return None
        return {"num_batches": num_batches, "num_processes": self.config.num_processes, "source": state}

    def _batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    def _prepare(self, batch: "Batch", is_last: bool) -> Any:
        """Return this process's part of a fetched batch, on its device."""
        data = self.dataset
        if is_last and self.config.counts_streams and isinstance(data, IterableDatasetShard) and not self.num_workers:
            # Worker processes count in their copy of the dataset.
            self.remainder = data.num_examples % (data.batch_size * data.num_processes)
        if self.transfer is not None:
            return self.transfer(batch)
        return move_to_device(batch, self.config.device, non_blocking=self.config.non_blocking)


def iterate_to_end(fetched: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of a torch loader; raise an error if its dataset or collator raises ``StopIteration``.

    The data would seem to end there, and the rest of the epoch would be left out.
    """
    while True:
        try:
            batch = next(fetched)
        except StopIteration as end:
            if _comes_from_examples(end):
                raise InputRuntimeError(
                    "The dataset or the data collator raised StopIteration while a batch was made, so the data would "
                    "end early; let it return the example, or raise another error."
                ) from end
            return
        yield batch


def _comes_from_examples(end: StopIteration) -> bool:
    """Return whether ``end`` was raised by code that torch calls to make a batch, and not by torch or a sampler."""
    if "DataLoader worker" in str(end):
        return True
    frames = [frame for frame, _ in walk_tb(end.__traceback__)]
    fetches = [frame for frame in frames if frame.f_code.co_name == "fetch" and "torch" in frame.f_code.co_filename]
    return bool(fetches) and fetches[-1] is not frames[-1]


def _keep(*objects: Any) -> None:
    """Do nothing: a finalizer keeps its arguments alive until it is called."""


@dataclass(frozen=True)
class _WatchedIndices:
    """The indices of a loader's batches; ``on_drawn`` gets the number of a batch and its indices before it is read."""

    indices: Iterable[Any]
    on_drawn: Callable[[int, Any], None]

    def __iter__(self) -> Iterator[Any]:
        for number, drawn in enumerate(self.indices):
            self.on_drawn(number, drawn)
            yield drawn

    def __len__(self) -> int:
        return len(cast(Sized, self.indices))


def get_user_batch_size(data: object) -> int | None:
    """Return the batch size of ``data`` if it is the user's own loader, and knows its batch size."""
    if not isinstance(data, DataLoader):
        return None
    batches: Any = data.sampler if isinstance(data.sampler, BatchSampler) else data.batch_sampler
    return data.batch_size or getattr(batches, "batch_size", None)


def samplers_of(loader: "DataLoader[Any]") -> list[Any]:
    """Return the samplers of ``loader``, each followed by the sampler that it reads."""
    samplers: list[Any] = []
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while sampler is not None:
        samplers.append(sampler)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = inner if inner is not None else getattr(sampler, "sampler", None)
    return samplers


def generators_of(loader: "Loader") -> list[Generator]:
    """Return the generators that ``loader`` and its samplers hold, in an order that a new loader has too."""
    owners = [loader, *samplers_of(loader)] if isinstance(loader, DataLoader) else []
    values = [value for owner in owners for value in vars(owner).values()]
    return list(dict.fromkeys(value for value in values if isinstance(value, Generator)))


def sampler_of_its_own_order(loader: "Loader") -> Any:
    """Return the sampler whose order depends on more than seed and epoch, ``None`` if there is none."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    samplers = samplers_of(loader)
    if any(isinstance(sampler, SequentialSampler) or hasattr(sampler, "set_epoch") for sampler in samplers):
        return None
    return samplers[-1]


def num_own_shares(loader: "DataLoader[Any]") -> int:
    """Return over how many processes the sampler or the stream of ``loader`` divides the data by itself, at least 1.

    torch's and transformers' samplers have ``num_replicas``; ``split_dataset_by_node`` of the ``datasets`` library has
    no public counterpart.
    """
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    counts = [getattr(sampler, "num_replicas", 1) for sampler in samplers]
    return max(*counts, getattr(getattr(loader.dataset, "_distributed", None), "world_size", 1))


def _keeps_state(source: object) -> bool:
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def _forgets_examples(dataset: object) -> bool:
    """Return whether a stream of the ``datasets`` library shuffles in a buffer, which its state leaves out.

    The library documents this (``IterableDataset.state_dict``), but has no public name for it.
    """
    parts = [getattr(dataset, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        if part is not None:
            parts += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]
    return False


def skip_first_batches(
    loader: "Loader", num_batches: int, position: Mapping[str, Any] | None = None, *, shows_progress: bool = False
) -> Any:
    """Return a loader that starts after ``num_batches``.

    Batches are skipped by index if the data have indices, else by the position from
    :meth:`DataLoaderShard.position_after`, else by fetching them.
    """
    if not isinstance(loader, DataLoader):
        return _SkippedIterable(loader, num_batches)
    options = _options_of(loader)
    by_index = not isinstance(loader.dataset, IterableDataset)
    for name in ("sampler", "batch_sampler"):
        if by_index and name in options:
            options[name] = SkipBatchSampler(options[name], num_batches)
    if isinstance(loader, DataLoaderShard):
        # A copy, so that this dataset starts from the beginning when it is iterated again.
        dataset = loader.dataset if position is None or loader.stateful is not None else copy(loader.dataset)
        to_skip = 0 if by_index or position is not None else num_batches
        options |= {"num_batches_to_skip": to_skip, "position": position, "shows_progress": shows_progress}
        rest = type(loader)(dataset, **options)
        source = rest._seekable()
        if position is not None and source is not None and position["source"] is not None:
            source.load_state_dict(position["source"])
        rest.num_positions_kept = loader.num_positions_kept
        return rest
    plain: DataLoader[Any] = DataLoader(loader.dataset, **options)
    return plain if by_index else _SkippedIterable(plain, num_batches)


def num_examples_in_round(loader: "Loader") -> int | None:
    """Return how many examples a batch of each process has together; ``None`` if that is unknown or varies."""
    if not isinstance(loader, DataLoaderShard) or get_user_batch_size(loader) is None:
        return None
    if not isinstance(loader.dataset, IterableDataset) and not isinstance(loader, DataLoaderDispatcher):
        return loader.total_batch_size
    is_split = isinstance(loader, DataLoaderDispatcher) and loader.config.split_batches
    return (get_user_batch_size(loader) or 1) * (1 if is_split else loader.config.num_processes)


def skip_first_examples(loader: "Loader", num_examples: int) -> "DataLoaderShard | None":
    """Return a loader without the first ``num_examples`` of all processes; ``None`` if they cannot be identified.

    Batch samplers of other classes have batches of any size; workers and processes may read different files.
    """
    if not isinstance(loader, DataLoaderShard) or isinstance(loader, StreamShardsLoader):
        return None
    options = _options_of(loader)
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        if loader.num_workers or loader.stateful is not None:
            return None
        if isinstance(dataset, IterableDatasetShard):
            dataset = copy(dataset)
            dataset.dataset = RestOfStream(dataset.dataset, num_examples)
        else:
            dataset = RestOfStream(dataset, num_examples)
    else:
        batches: Any = options.get("batch_sampler")
        inner = batches.batch_sampler if isinstance(batches, BatchSamplerShard) else batches
        if type(inner) is not BatchSampler:
            return None
        rest = BatchSampler(RestSampler(inner.sampler, num_examples), inner.batch_size, inner.drop_last)
        is_shared = isinstance(batches, BatchSamplerShard)
        options["batch_sampler"] = BatchSamplerShard(rest, batches.config) if is_shared else rest
        options["first_example"] = num_examples
    return type(loader)(dataset, **options)


def move_to_device(data: "Nested", device: torch.device | None, *, non_blocking: bool = False) -> Any:
    """Move every tensor of a batch (nested mappings, lists, tuples) to ``device``, keeping the containers' types.

    Without a device they stay where they are.
    """
    if device is None:
        return data
    if type(data) is dict and set(map(type, data.values())) == {torch.Tensor}:  # the usual batch
        return {name: value.to(device, non_blocking=non_blocking) for name, value in data.items()}
    if type(data) is not dict and isinstance(data, Mapping) and hasattr(data, "to"):
        # A `BatchEncoding` holds more than tensors.
        return data.to(device, non_blocking=non_blocking) if non_blocking else data.to(device)
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), data)


@dataclass(eq=False)
class _SkippedIterable:
    """Any iterable of batches without its first ones."""

    batches: Iterable[Any]
    num_batches: int

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self.batches, self.num_batches, None)


def _options_of(loader: "Loader") -> dict[str, Any]:
    """Return the options with which ``loader`` was made."""
    names = (*_CARRIED_OPTIONS, *(_OPTIONS_OF_SHARDS if isinstance(loader, DataLoaderShard) else ()))
    options = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    if isinstance(loader.dataset, IterableDataset) or (loader.batch_size is None and loader.batch_sampler is None):
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        # Where the sampler yields whole batches, the loader does not batch.
        return options | ({"sampler": loader.sampler} if isinstance(loader.sampler, BatchSampler) else {})
    return options | {"batch_sampler": loader.batch_sampler}


class StreamShardsLoader(DataLoaderShard):
    """Each process reads different files of a stream until any process runs out; accelerate would then wait for it.

    Attributes:
        must_be_even: Whether all processes must have equally many examples, for example to gather predictions.
    """

    must_be_even = False

    def _batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in chain(batches, [None]):
            num_examples = 0 if batch is None else find_batch_size(batch) or 1
            sizes = self.config.gather([num_examples])
            if self.must_be_even and len(set(sizes)) > 1:
                raise InputError(
                    "The processes read files of their own of the stream, and their next batches have "
                    f"{', '.join(map(str, sizes))} examples, which cannot be gathered; leave `dispatch_batches` of "
                    "`accelerator_config` out, so that the first process reads for all."
                )
            if not all(sizes):
                if any(sizes):
                    logger.warning(
                        "The epoch ends with the files of the shortest process; the others have more examples: "
                        "distribute them evenly over the files, or leave `dispatch_batches` out."
                    )
                return
            yield batch


class DataLoaderDispatcher(DataLoaderShard):
    """A loader whose first process reads the batches and broadcasts them, a batch for each process at a time.

    Data without indices are read once this way, and in one order. The last joint batch is completed with examples of
    the first joint batch, so that all processes get equally many.
    """

    def __len__(self) -> int:
        rounds = super().__len__() / (1 if self.config.split_batches else self.config.num_processes)
        return math.ceil(rounds) if self.keeps_remainder else math.floor(rounds)

    def position_after(self, num_batches: int) -> dict[str, Any] | None:
        position = super().position_after(num_batches)
        # The last batch may be completed with examples of the first.
        return position and {**position, "first": _convert_to_plain(self._first)}

    def _seekable(self) -> Any:
        # The other processes have the stream too, and do not read it.
        return super()._seekable() if self.config.process_index == 0 else None

    def _batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        first = self.position["first"] if self.position else None
        self._first: Any = None if first is None else move_to_device(first, self.config.device)
        self.remainder = -1
        # Every process has made an iterator, and drawn its seed; only the first one advances it.
        joint = self._joint_batches(batches) if self.config.process_index == 0 else iter(())
        num_batches = 0
        while (batch := self.config.broadcast(next(joint, None))) is not None:
            num_batches += 1
            yield batch
        if num_batches == 0:
            raise InputError(
                f"The dataset (`{type(self.dataset).__name__}`) yielded no batch; it must yield some each time it "
                "is iterated, and training iterates a stream until `max_steps`: pass one that starts over with "
                "each `iter()`, set `max_steps` to the number it has, or set `accelerator_config="
                "{'dispatch_batches': False}`, with which training ends with the data."
            )

    def _joint_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the joined batches of all processes."""
        count = 1 if self.config.split_batches else self.config.num_processes
        while collected := list(islice(batches, count)):
            if len(collected) == count or self.keeps_remainder:
                yield _concatenate(collected)

    def _prepare(self, batch: "Batch", is_last: bool) -> Any:
        config = self.config
        count = config.num_processes
        batch = super()._prepare(batch, is_last)
        num_examples = find_batch_size(batch)
        if is_last:
            # For a stream, the remainder is known only now (accelerate, `DataLoaderDispatcher.__iter__`).
            self.remainder = num_examples or -1
        if count == 1 or num_examples is None:
            return batch
        if self.keeps_remainder and self._first is None:
            # A stream may be shorter than the number of processes (accelerate then fails in the model).
            rows = torch.arange(count, device=config.device) % num_examples
            self._first = map_tensors(lambda tensor: tensor[rows], batch)
        size, left_over = divmod(num_examples, count)
        if is_last and left_over and self.keeps_remainder:
            batch = _concatenate([batch, self._first])
            size += 1
        start = config.process_index * size
        return map_tensors(lambda tensor: tensor[start : start + size], batch)


def _convert_to_plain(batch: "Nested") -> Any:
    """Return ``batch`` on the CPU, in dicts and lists: checkpoints are read without the classes of collators."""
    if isinstance(batch, torch.Tensor):
        return batch.cpu()
    if isinstance(batch, Mapping):
        return {key: _convert_to_plain(value) for key, value in batch.items()}
    return [_convert_to_plain(value) for value in batch] if isinstance(batch, list | tuple) else batch


def _concatenate(batches: list[Any]) -> Any:
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, torch.Tensor):
        try:
            return torch.cat(batches)
        except RuntimeError as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in batches)
            raise RuntimeError(
                f"The first process reads the batches of all and joins them, but theirs have the shapes {shapes}; pad "
                "them to one length in the collator, or set `dispatch_batches=False` (every process reads the data) "
                "or `split_batches=True` in `accelerator_config`."
            ) from error
    if isinstance(first, Mapping):
        columns = {key: _concatenate([batch[key] for batch in batches]) for key in first}
        mapping: Any = type(first)
        return mapping(columns)
    if isinstance(first, list | tuple):
        values = [_concatenate(list(column)) for column in zip(*batches, strict=True)]
        return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)
    raise TypeError(
        f"A batch holds a {type(first).__name__}, which cannot be joined with the next process's; let the "
        "collator return tensors, or set `dispatch_batches=False` in `accelerator_config`."
    )


def prepare_data_loader(loader: "Loader", config: DataLoaderConfig) -> "Loader":
    """Return the ``DataLoaderShard`` of a plain ``DataLoader``; anything else is returned unchanged.

    A random sampler becomes a seeded sampler. A batch size that cannot be split as ``config`` says is refused.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader, DataLoaderShard):
        return loader
    batches: Any = loader.sampler if isinstance(loader.sampler, BatchSampler) else loader.batch_sampler
    count = config.num_processes
    batch_size = loader.batch_size or getattr(batches, "batch_size", None)
    if config.split_batches and (batch_size is None or batch_size % count):
        raise InputError(
            f"`split_batches=True` splits each batch of {batch_size} examples over {count} processes, which "
            f"leaves unequal parts; set the batch size to a multiple of {count}, or `split_batches=False`."
        )
    if count > 1 and num_own_shares(loader) > 1:
        logger.warning(
            f"The data are divided over {num_own_shares(loader)} processes already, and the trainer divides them over "
            f"{count} again, as transformers does, so that a part is never seen; let the loader read all of them, "
            "without `DistributedSampler` and `split_dataset_by_node`."
        )
    options = _options_of(loader) | {"config": config, "keeps_remainder": not loader.drop_last}
    sampler = getattr(batches, "sampler", None)
    if (
        config.use_seedable_sampler
        and isinstance(sampler, RandomSampler)
        and not isinstance(sampler, SeedableRandomSampler)
    ):
        drawn = {"replacement": sampler.replacement, "num_samples": sampler._num_samples}
        batches.sampler = SeedableRandomSampler(
            sampler.data_source, seed=config.data_seed, generator=sampler.generator, **drawn
        )
    is_stream = isinstance(loader.dataset, IterableDataset)
    dispatches = is_stream if config.dispatch_batches is None else config.dispatch_batches
    if is_stream and _keeps_state(loader) and (dispatches or config.num_processes == 1):
        # As torchdata's `StatefulDataLoader`, which knows where each of its workers stands.
        options["stateful"] = loader
    if dispatches:
        options.pop("generator", None)
        return DataLoaderDispatcher(loader.dataset, **options)
    if config.num_processes == 1:
        return DataLoaderShard(loader.dataset, **options)
    if config.split_batches and options.get("batch_size"):
        options["batch_size"] //= config.num_processes
    for name in options.keys() & {"sampler", "batch_sampler"}:
        if not isinstance(options[name], BatchRebalanceSampler):  # which yields the batches of its process
            options[name] = BatchSamplerShard(options[name], config)
    examples = _select_examples(loader, config)
    has_own_files = isinstance(examples, IterableDataset) and not isinstance(examples, IterableDatasetShard)
    kind = StreamShardsLoader if has_own_files else DataLoaderShard
    return kind(examples, shared_generator=_get_shared_generator(loader, batches, config), **options)


def _select_examples(loader: "Loader", config: DataLoaderConfig) -> "Examples":
    """Return the examples that one of several processes reads; if they have indices, the sampler chooses among all."""
    dataset: Examples = loader.dataset
    if not isinstance(loader.dataset, IterableDataset):
        return dataset
    if getattr(dataset, "n_shards", 0) >= config.num_processes and not config.split_batches:
        # A stream of the `datasets` library: every process reads different files.
        return dataset.shard(num_shards=config.num_processes, index=config.process_index)
    return IterableDatasetShard(dataset, config, batch_size=loader.batch_size or 1, drop_last=loader.drop_last)


def _get_shared_generator(loader: "Loader", batches: object, config: DataLoaderConfig) -> torch.Generator | None:
    """Return the generator from which several processes must draw the same order."""
    if isinstance(loader.dataset, IterableDataset):
        return getattr(loader.dataset, "generator", None)
    sampler: Any = getattr(batches, "sampler", None)
    if config.use_seedable_sampler or not hasattr(sampler, "generator"):
        return None
    if sampler.generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        sampler.generator = torch.Generator().manual_seed(seed)
    return sampler.generator
