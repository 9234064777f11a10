"""The examples of a run, of one source or of several."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Sampler

from portico.distributed.workers import in_every_process
from portico.errors import InputError
from portico.mrc.distillation import DistillationMixin
from portico.mrc.experiment.data import Examples, load_examples
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.trainer import MRCTrainer
from portico.trainer import Trainer


def load_sources(data: Mapping[str, Any]) -> list[Examples]:
    """Return the examples of each source.

    Args:
        data: As :func:`~portico.mrc.experiment.data.load_examples` takes it, for one source. With ``sources``, a
            list of such mappings, there are several, and each says what differs from the rest of ``data``.

    Raises:
        InputError: If the sources are no such list, or one of them cannot be used.
    """
    shared = {key: value for key, value in data.items() if key != "sources"}
    sources = data.get("sources")
    if sources is None:
        return [load_examples(shared)]
    if not isinstance(sources, list) or not sources or not all(isinstance(source, Mapping) for source in sources):
        raise InputError(
            f"`data.sources={sources}` is no list of sources; set it to a list with the keys of `data` that differ, "
            "as in data.sources=[{train_file: a.json, validation_file: b.json}, {seed: 1}]."
        )
    unknown = sorted({key for source in sources for key in source} - set(shared))
    if unknown:
        raise InputError(
            f"`data.sources` sets {', '.join(unknown)}, which `data` does not have; a source has: "
            f"{', '.join(sorted(shared))}."
        )
    return [load_examples({**shared, **source}) for source in sources]


def pooled(sources: Sequence[Examples]) -> Examples:
    """Return the examples of all sources as those of one."""
    return Examples(
        train=[example for source in sources for example in source.train],
        validation=[example for source in sources for example in source.validation],
    )


def feature_sets(sources: Sequence[Examples], featurizer: Featurizer, *, labels: bool) -> dict[str, Any]:
    """Return the data that a trainer takes: those of the one source, or lists of those of each.

    Args:
        sources: Examples of each source.
        featurizer: Makes their features.
        labels: Whether features to evaluate on have labels, and so a loss.

    Returns:
        ``train_dataset``, ``eval_dataset`` and ``eval_examples``.
    """
    train = [featurizer.train_features(source.train) for source in sources]
    evaluation = [featurizer.eval_features(source.validation, labels=labels) for source in sources]
    examples = [source.validation for source in sources]
    parts: dict[str, list[Any]] = {"train_dataset": train, "eval_dataset": evaluation, "eval_examples": examples}
    return {name: part[0] if len(sources) == 1 else part for name, part in parts.items()}


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


class MultiSourceMixin(Trainer):
    """Put before a trainer: batches of a ``ConcatDataset``, or of a list of data sets, hold one of them each."""

    def _take_data(self, data_collator: Any, train_dataset: Any, eval_dataset: Any, processing_class: Any) -> None:
        super()._take_data(data_collator, joined(train_dataset), joined(eval_dataset), processing_class)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(dataset, ConcatDataset):
            return super()._get_train_sampler(train_dataset)
        strategy = self.args.train_sampling_strategy
        if strategy != "random":
            raise InputError(
                f"`train_sampling_strategy={strategy!r}` orders one data set, and there are {len(dataset.datasets)}, "
                "whose batches take turns, each in random order; set it to 'random', or give one data set."
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return IndividualDomainBatchSampler(dataset, self._train_batch_size, seed)


def joined(datasets: Any) -> Any:
    """Return a list of data sets as one ``ConcatDataset``, and anything else as it is.

    Raises:
        InputError: If one of them is empty, of which no batch could be made.
    """
    if isinstance(datasets, ConcatDataset):
        sets: Sequence[Any] = datasets.datasets
    elif isinstance(datasets, list | tuple) and datasets and all(map(_is_dataset, datasets)):
        sets = datasets
    else:
        return datasets
    empty = [str(number) for number, dataset in enumerate(sets) if len(dataset) == 0]
    if empty:
        raise InputError(
            f"Of the {len(sets)} data sets number {', '.join(empty)} (from 0) is empty; leave it out, or fill it."
        )
    return ConcatDataset(sets) if sets is datasets else datasets


def _is_dataset(part: Any) -> bool:
    """Tell a data set from an example, as a list of examples is a data set too."""
    return not isinstance(part, Mapping) and hasattr(part, "__len__") and hasattr(part, "__getitem__")


class MultiSourceMRCTrainer(DistillationMixin, MultiSourceMixin, MRCTrainer):
    """An ``MRCTrainer`` for several data sets, whose batches hold one of them each.

    Evaluation answers each data set by itself: the files of number ``i`` end in ``_i``, its metrics are in
    ``eval_i_results.json``, and the mean of each metric is returned, logged and given to the callbacks, once.

    Args:
        *args: As in :class:`~portico.mrc.trainer.MRCTrainer`.
        teacher: See :class:`~portico.mrc.distillation.DistillationMixin`.
        distillation: See there.
        **kwargs: As in :class:`~portico.mrc.trainer.MRCTrainer`. ``train_dataset`` and ``eval_dataset`` are lists of
            data sets or a ``ConcatDataset``, and ``eval_examples`` has the examples of each.

    Attributes:
        answered: What the last post-processing of each data set returned, a list.
    """

    @in_every_process
    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Any = None,
        eval_examples: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate each data set, and return the mean of each metric.

        Args:
            eval_dataset: Features, of several data sets or of one; by default the trainer's own.
            eval_examples: The examples of each; by default the trainer's own.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name, and of the files.

        Raises:
            InputError: If there are not as many lists of examples as data sets.
        """
        features = self.eval_dataset if eval_dataset is None else joined(eval_dataset)
        if not isinstance(features, ConcatDataset):
            return super().evaluate(eval_dataset, eval_examples, ignore_keys, metric_key_prefix)
        examples = self.eval_examples if eval_examples is None else eval_examples
        self._check_examples(examples)
        self._memory_tracker.start()
        each, answered = [], []
        for number, (part, its_examples) in enumerate(_paired(features.datasets, examples)):
            each.append(self._evaluate_source(number, part, its_examples, ignore_keys, metric_key_prefix))
            answered.append(self.answered)
        self.answered = answered
        means = {
            name: sum(metrics[name] for metrics in each) / len(each)
            for name in each[0]
            if all(name in metrics for metrics in each)
        }
        self.log(means)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, means)
        self._memory_tracker.stop_and_update_metrics(means)
        return means

    def _evaluate_source(
        self, number: int, features: Any, examples: Any, ignore_keys: list[str] | None, prefix: str
    ) -> dict[str, float]:
        loader = self.get_eval_dataloader(features)
        started = time.time()
        output = self._answering(
            examples,
            features,
            lambda: self._loop_of_evaluations(
                loader, description="Evaluation", ignore_keys=ignore_keys, metric_key_prefix=prefix
            ),
            file_suffix=f"_{number}",
        )
        metrics = self._with_speed(output, prefix, started)
        self.save_metrics(f"{prefix}_{number}", metrics, combined=False)
        return metrics


def _paired(datasets: Sequence[Any], examples: Any) -> list[tuple[Any, Any]]:
    if examples is None:
        return [(dataset, None) for dataset in datasets]
    if len(examples) != len(datasets):
        raise InputError(
            f"There are {len(datasets)} data sets to evaluate on and {len(examples)} lists of examples; give a list "
            "of examples for each data set as `eval_examples`, in the same order."
        )
    return list(zip(datasets, examples, strict=True))
