"""The order in which examples are looked at."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler
from transformers.trainer_utils import has_length

from portico.contract import Facade
from portico.errors import InputError

logger = logging.getLogger(__name__)
_NEED_LENGTHS = ("group_by_length", "batch_rebalance")


class SamplingMethods(Facade):
    """What the facade makes of ``train_sampling_strategy``."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        strategy = self.args.train_sampling_strategy
        if not has_length(dataset):
            if strategy in _NEED_LENGTHS:
                logger.warning(
                    "`train_sampling_strategy=%r` is ignored because the training data set has no length; examples "
                    "come in its own order.",
                    strategy,
                )
            return None
        if strategy == "group_by_length":
            return self._length_grouped(dataset, self.args.train_batch_size * self.args.gradient_accumulation_steps)
        if strategy == "batch_rebalance":
            return self._batch_rebalanced(dataset)
        return SequentialSampler(dataset) if strategy == "sequential" else RandomSampler(dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        if not has_length(eval_dataset):
            return None
        if self.args.train_sampling_strategy == "group_by_length":
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return self._length_grouped(
                eval_dataset, self.args.eval_batch_size, generator=torch.Generator().manual_seed(seed)
            )
        return SequentialSampler(eval_dataset)

    def _length_grouped(self, dataset: Any, batch_size: int, **options: Any) -> LengthGroupedSampler:
        return LengthGroupedSampler(
            batch_size,
            dataset=dataset,
            lengths=self._known_lengths(dataset),
            model_input_name=self._first_input_name(),
            **options,
        )

    def _batch_rebalanced(self, dataset: Any) -> BatchRebalanceSampler:
        lengths = self._known_lengths(dataset)
        if lengths is None:
            name = self._first_input_name() or "input_ids"
            if not isinstance(dataset[0], Mapping) or name not in dataset[0]:
                raise InputError(
                    f"`train_sampling_strategy='batch_rebalance'` needs the lengths of the examples, but they hold no "
                    f"`{name}`; add a column `{self.args.length_column_name}`, or choose another strategy."
                )
            lengths = [len(example[name]) for example in dataset]
        args = self.args
        return BatchRebalanceSampler(
            lengths=lengths,
            effective_batch_size=args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
            dp_size=args.world_size,
            grad_accum=args.gradient_accumulation_steps,
            rank=args.process_index,
            drop_last=args.dataloader_drop_last,
        )

    def _known_lengths(self, dataset: Any) -> list[int] | None:
        column = self.args.length_column_name
        if column not in (getattr(dataset, "column_names", None) or ()):
            return None
        lengths = dataset[column]
        return lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)

    def _first_input_name(self) -> str | None:
        names = getattr(self.processing_class, "model_input_names", None)
        return names[0] if names else None
