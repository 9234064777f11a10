"""The part of the data that one of several processes reads."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, Subset

from portico.ipu.emulator.options.options import Options


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
