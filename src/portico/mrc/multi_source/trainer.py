"""``MultiSourceMRCTrainer``: readers of several data sets, with a teacher or without."""

import time
from collections.abc import Sequence
from typing import Any

from torch.utils.data import ConcatDataset

from portico.distributed.processes import run_in_workers
from portico.errors import InputError
from portico.mrc.distillation.mixin import DistillationMixin
from portico.mrc.multi_source.mixin import MultiSourceMixin, joined
from portico.mrc.trainer import MRCTrainer


class MultiSourceMRCTrainer(DistillationMixin, MultiSourceMixin, MRCTrainer):
    """An ``MRCTrainer`` for several data sets, whose batches hold one of them each.

    Evaluation answers each data set by itself: the files of number ``i`` end in ``_i``, its metrics are in
    ``eval_i_results.json``, and the mean of each metric is returned, logged and given to the callbacks, once.

    Args:
        *args: As in :class:`~portico.mrc.trainer.MRCTrainer`.
        teacher: See :class:`~portico.mrc.distillation.mixin.DistillationMixin`.
        distillation: See there.
        **kwargs: As in :class:`~portico.mrc.trainer.MRCTrainer`. ``train_dataset`` and ``eval_dataset`` are lists of
            data sets or a ``ConcatDataset``, and ``eval_examples`` has the examples of each.

    Attributes:
        answered: What the last post-processing of each data set returned, a list.
    """

    @run_in_workers
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
            lambda: self._evaluation_loop_in_use(
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
