"""Samplers whose order depends on a seed and an epoch alone, so that a run can be continued anywhere."""

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler


class SeededRandomSampler(RandomSampler):
    """Random order drawn from a generator of its own, seeded with ``seed + epoch``.

    The global generator is left alone; this is the order ``transformers.Trainer`` trains in.

    Args:
        data_source: Data set to draw indices of.
        seed: First epoch's seed; ``None`` takes the seed of torch's global generator.
        replacement: Draw with replacement.
        num_samples: Indices in an epoch; ``None`` for all.
        generator: Generator to reseed; ``None`` makes one.
    """

    def __init__(
        self,
        data_source: Sized,
        *,
        seed: int | None = None,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(data_source, replacement=replacement, num_samples=num_samples, generator=generator)
        self.seed = torch.random.initial_seed() if seed is None else seed
        self.epoch = 0

    @classmethod
    def like(cls, sampler: RandomSampler, seed: int | None) -> "SeededRandomSampler":
        """Return the seeded counterpart of a plain random sampler."""
        return cls(
            sampler.data_source,
            seed=seed,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
            generator=sampler.generator,
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of ``epoch``."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.seed + self.epoch)
        yield from super().__iter__()
        self.epoch += 1


class SkipBatchSampler(BatchSampler):
    """A batch sampler without its first batches: their indices are drawn, their data never loaded.

    Args:
        batch_sampler: Batches to go through.
        num_batches: How many to leave out.
    """

    def __init__(self, batch_sampler: Any, num_batches: int) -> None:
        self.batch_sampler = batch_sampler
        self.num_batches = num_batches

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        """Examples in a batch."""
        return int(self.batch_sampler.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for index, batch in enumerate(self.batch_sampler):
            if index >= self.num_batches:
                yield batch

    def __len__(self) -> int:
        return max(len(self.batch_sampler) - self.num_batches, 0)
