"""Batches of a user's sampler, joined to combined ones."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch.utils.data import Sampler


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
