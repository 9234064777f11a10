"""The order of training on several data sets."""

import math
from collections.abc import Iterator

import torch
from torch.utils.data import ConcatDataset, Sampler


class IndividualDomainBatchSampler(Sampler[int]):
    """Indices such that each batch of ``batch_size`` holds examples of one data set.

    In a round each data set in turn gives a batch; there are as many rounds as the largest has batches. Each has a
    random order of its own, and one that comes to its end begins anew in another order, also in the middle of a batch.
    The order depends on the seed and the epoch alone, so a run can be continued anywhere.

    Args:
        dataset: The data sets.
        batch_size: Examples in a batch of the loader.
        seed: Of the first epoch; ``None`` takes the seed of torch's global generator.
    """

    def __init__(self, dataset: "ConcatDataset[object]", batch_size: int, seed: int | None = None) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = torch.initial_seed() if seed is None else seed
        self.epoch = 0
        ends = dataset.cumulative_sizes
        self._sources = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self._num_rounds = math.ceil(max(map(len, self._sources)) / batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of ``epoch``."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batch_size * self._num_rounds * len(self._sources)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        orders = [_endless_order(source, generator) for source in self._sources]
        for _ in range(self._num_rounds):
            for order in orders:
                for _ in range(self.batch_size):
                    yield next(order)
        self.epoch += 1


def _endless_order(source: range, generator: torch.Generator) -> Iterator[int]:
    while True:
        for index in torch.randperm(len(source), generator=generator).tolist():
            yield source[index]
