"""The order of examples: it depends only on a seed and the epoch, so that a run can be resumed anywhere."""

import logging
from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from portico.errors import InputError
from portico.hf_compat import BatchRebalanceSampler, LengthGroupedSampler, has_length

if TYPE_CHECKING:
    from portico.annotations import Examples, ProcessingClass
    from portico.arguments import TrainingArguments


class SeedableRandomSampler(RandomSampler):
    """Random order from a generator seeded with ``seed + epoch``; the global generator is not used.

    This is the order in which ``transformers.Trainer`` trains (accelerate's sampler of the same name).

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
    def like(cls, sampler: RandomSampler, seed: int | None) -> "SeedableRandomSampler":
        """Return the seeded counterpart of a plain random sampler."""
        return cls(
            sampler.data_source,
            seed=seed,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
            generator=sampler.generator,
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.seed + self.epoch)
        yield from super().__iter__()
        self.epoch += 1


class SkipBatchSampler(BatchSampler):
    """A batch sampler without its first batches: their indices are drawn, but their data not loaded.

    Args:
        batch_sampler: Batches to iterate.
        num_batches: Batches to skip.
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


_NEED_LENGTHS = ("group_by_length", "batch_rebalance")


def train_sampler(
    dataset: "Examples", args: "TrainingArguments", processing_class: "ProcessingClass | None"
) -> Sampler[Any] | None:
    """Return the sampler for ``args.train_sampling_strategy``; ``None`` for data without a length."""
    strategy = args.train_sampling_strategy
    if not has_length(dataset):
        if strategy in _NEED_LENGTHS:
            logging.getLogger(__name__).warning(
                "`train_sampling_strategy=%r` is ignored because the training data set has no length; examples come "
                "in its own order.",
                strategy,
            )
        return None
    sized: Any = dataset
    if strategy == "group_by_length":
        batch_size = args.train_batch_size * args.gradient_accumulation_steps
        return _length_grouped(sized, batch_size, args, processing_class)
    if strategy == "batch_rebalance":
        return _batch_rebalanced(sized, args, processing_class)
    return SequentialSampler(sized) if strategy == "sequential" else RandomSampler(sized)


def eval_sampler(
    dataset: "Examples", args: "TrainingArguments", processing_class: "ProcessingClass | None"
) -> Sampler[int] | None:
    """Return the sampler of an evaluation: the order of the data, or by length where training is grouped by length."""
    if not has_length(dataset):
        return None
    sized: Any = dataset
    if args.train_sampling_strategy == "group_by_length":
        generator = torch.Generator().manual_seed(args.seed if args.data_seed is None else args.data_seed)
        return _length_grouped(sized, args.eval_batch_size, args, processing_class, generator=generator)
    return SequentialSampler(sized)


def _length_grouped(
    dataset: "Examples",
    batch_size: int,
    args: "TrainingArguments",
    processing_class: "ProcessingClass | None",
    generator: torch.Generator | None = None,
) -> LengthGroupedSampler:
    return LengthGroupedSampler(
        batch_size,
        dataset=dataset,
        lengths=_known_lengths(dataset, args),
        model_input_name=_first_input_name(processing_class),
        generator=generator,
    )


def _batch_rebalanced(
    dataset: "Examples", args: "TrainingArguments", processing_class: "ProcessingClass | None"
) -> BatchRebalanceSampler:
    lengths = _known_lengths(dataset, args)
    if lengths is None:
        name = _first_input_name(processing_class) or "input_ids"
        if not isinstance(dataset[0], Mapping) or name not in dataset[0]:
            raise InputError(
                f"`train_sampling_strategy='batch_rebalance'` needs the lengths of the examples, but they hold no "
                f"`{name}`; add a column `{args.length_column_name}`, or choose another strategy."
            )
        lengths = [len(example[name]) for example in dataset]
    return BatchRebalanceSampler(
        lengths=lengths,
        effective_batch_size=args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        dp_size=args.world_size,
        grad_accum=args.gradient_accumulation_steps,
        rank=args.process_index,
        drop_last=args.dataloader_drop_last,
    )


def _known_lengths(dataset: "Examples", args: "TrainingArguments") -> list[int] | None:
    column = args.length_column_name
    if column not in (getattr(dataset, "column_names", None) or ()):
        return None
    lengths = dataset[column]
    return lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)


def _first_input_name(processing_class: "ProcessingClass | None") -> str | None:
    names = getattr(processing_class, "model_input_names", None)
    return names[0] if names else None
