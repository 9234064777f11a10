"""Training on several datasets at once; each batch comes from one of them."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Sampler

from portico.compat.annotations import DataCollator, EvalExamples, ProcessingClass
from portico.compat.annotations import Examples as Features
from portico.errors import InputError
from portico.loop.core import TrainerCore
from portico.mrc.distillation import DistillationMixin
from portico.mrc.trainer import MRCTrainer
from portico.trainer import Trainer, run_in_workers
from portico.trust.names import data_only


class IndividualDomainBatchSampler(Sampler[int]):
    """Yields indices such that each batch of ``batch_size`` holds examples of one dataset.

    A round has one batch of each dataset in turn; there are as many rounds as the largest has batches. Each dataset
    is shuffled separately, and one that is exhausted starts again in a new order, even in the middle of a batch. The
    order depends only on seed and epoch, so a run can be resumed anywhere.

    Args:
        dataset: The datasets.
        batch_size: Examples in a batch of the loader.
        seed: Seed of the first epoch; ``None`` takes the seed of torch's global generator.
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
        # A separate generator: the state of the global one differs between a run and its resumption.
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


class MultiSourceCore(TrainerCore):
    """Takes lists of datasets."""

    def adopt_data(
        self,
        data_collator: DataCollator | None,
        train_dataset: Features | None,
        eval_dataset: "EvalExamples | None",
        processing_class: "ProcessingClass | None",
    ) -> None:
        train_dataset, eval_dataset = _concatenate(train_dataset), _concatenate(eval_dataset)
        super().adopt_data(data_collator, train_dataset, eval_dataset, processing_class)


class MultiSourceMixin(Trainer, core=MultiSourceCore):
    """Trains on a ``ConcatDataset`` or a list of datasets, each batch from one of them; put it before a trainer."""

    def _get_train_sampler(self, train_dataset: Features | None = None) -> Sampler[Any] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(dataset, ConcatDataset):
            return super()._get_train_sampler(train_dataset)
        strategy = self.args.train_sampling_strategy
        if strategy != "random":
            raise InputError(
                f"`train_sampling_strategy={strategy!r}` orders one dataset, and there are {len(dataset.datasets)}, "
                "whose batches take turns, each in random order; set it to 'random', or give one dataset."
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return IndividualDomainBatchSampler(dataset, self._train_batch_size, seed)


def _concatenate(datasets: object) -> Any:
    """Return a list of datasets as one ``ConcatDataset``, and anything else unchanged."""
    if isinstance(datasets, ConcatDataset):
        sets: Sequence[Any] = datasets.datasets
    elif isinstance(datasets, list | tuple) and datasets and all(map(_is_dataset, datasets)):
        sets = datasets
    else:
        return datasets
    # An empty dataset cannot fill its batch of a round.
    empty = [str(number) for number, dataset in enumerate(sets) if len(dataset) == 0]
    if empty:
        raise InputError(
            f"Dataset {', '.join(empty)} of {len(sets)} (counting from 0) is empty; remove it or add examples."
        )
    return ConcatDataset(sets) if sets is datasets else datasets


def _is_dataset(part: object) -> bool:
    """Return whether an entry of a list is a dataset; a list of examples, which are mappings, is a dataset itself."""
    return not isinstance(part, Mapping) and hasattr(part, "__len__") and hasattr(part, "__getitem__")


@data_only
class MultiSourceMRCTrainer(DistillationMixin, MultiSourceMixin, MRCTrainer):
    """An ``MRCTrainer`` for several datasets, each batch from one of them, and optionally a teacher.

    Evaluation answers each dataset separately: the files of number ``i`` end in ``_i``, its metrics are in
    ``eval_i_results.json``, and the mean of each metric is returned, logged and passed to the callbacks, once.

    For the arguments see :class:`~portico.mrc.distillation.DistillationMixin` and
    :class:`~portico.mrc.trainer.MRCTrainer`. ``train_dataset`` and ``eval_dataset`` are lists of datasets or a
    ``ConcatDataset``, and ``eval_examples`` has the examples of each.

    Attributes:
        answered: Results of the last post-processing of each dataset, a list.
    """

    @run_in_workers
    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: "EvalExamples | None" = None,
        eval_examples: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate each dataset as :meth:`portico.mrc.trainer.MRCTrainer.evaluate` does; return the mean metrics."""
        features = _concatenate(self.eval_dataset if eval_dataset is None else eval_dataset)
        if not isinstance(features, ConcatDataset):
            return super().evaluate(eval_dataset, eval_examples, ignore_keys, metric_key_prefix)
        datasets: Sequence[Any] = features.datasets
        examples = self.eval_examples if eval_examples is None else eval_examples
        self._check_examples(examples)
        if examples is None:
            examples = [None] * len(datasets)
        elif len(examples) != len(datasets):
            raise InputError(
                f"There are {len(datasets)} datasets to evaluate on and {len(examples)} lists of examples; give a "
                "list of examples for each dataset as `eval_examples`, in the same order."
            )
        # Not `super().evaluate` for each: that would log, and call the callbacks, once per dataset.
        self._memory_tracker.start()
        each = []
        answered = []
        for number, (part, its_examples) in enumerate(zip(datasets, examples, strict=True)):
            loader = self.get_eval_dataloader(part)
            started = time.time()
            with self._answering(its_examples, part, file_suffix=f"_{number}"):
                output = self._portico.run_evaluation_loop(
                    loader, description="Evaluation", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
                )
            each.append(self._portico.add_speed(output, metric_key_prefix, started))
            self.save_metrics(f"{metric_key_prefix}_{number}", each[-1], combined=False)
            answered.append(self.answered)
        self.answered = answered
        shared = [name for name in each[0] if all(name in metrics for metrics in each)]
        means = {name: sum(metrics[name] for metrics in each) / len(each) for name in shared}
        self.log(means)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, means)
        self._memory_tracker.stop_and_update_metrics(means)
        return means
