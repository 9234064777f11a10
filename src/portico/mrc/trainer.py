"""``MRCTrainer``: a ``Trainer`` that evaluates by answers."""

from collections.abc import Callable
from typing import Any

from portico.mrc.answering import AnsweringMethods, Examples


class MRCTrainer(AnsweringMethods):
    """Trains readers and evaluates their answers instead of their logits.

    Evaluation runs the model over features (windows of a passage), turns logits into answers with
    ``post_process_function``, writes them into ``args.output_dir`` and gives them to ``compute_metrics``. With a
    post-processing that streams, such as :class:`~portico.mrc.SpanPostProcessing`, the logits of the whole set are
    never held.

    Args:
        *args: As in :class:`~portico.trainer.Trainer`.
        eval_examples: The examples that ``eval_dataset`` holds the windows of.
        eval_dataset: Features to evaluate on.
        post_process_function: ``f(examples, features, predictions)`` or, for predictions,
            ``f(examples, features, predictions, "predict")``; or an object with ``begin(examples, features)`` whose
            result has ``update(logits, feature_indices)`` and ``compute()``.
        legacy_metrics: Return and log the metrics of ``compute_metrics`` alone, ``{}`` without one, as PrimeQA's
            trainer does; by default loss and speed come with them.
        **kwargs: As in :class:`~portico.trainer.Trainer`.

    Attributes:
        answered: What the last post-processing returned.
    """

    def __init__(
        self,
        *args: Any,
        eval_examples: Any = None,
        eval_dataset: Any = None,
        post_process_function: Callable[..., Any] | None = None,
        legacy_metrics: bool = False,
        **kwargs: Any,
    ) -> None:
        self.legacy_metrics = legacy_metrics
        super().__init__(
            *args,
            eval_examples=eval_examples,
            eval_dataset=eval_dataset,
            post_process_function=post_process_function,
            **kwargs,
        )

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Any = None,
        eval_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate the answers to ``eval_examples`` and return loss, speed and metrics.

        Args:
            eval_dataset: Features; by default the trainer's own. A dict of them is evaluated one by one, with the
                key in the names of metrics and files.
            eval_examples: The examples they are windows of; by default the trainer's own. A dict with the same keys
                where the features are one.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name, and of the files.

        Raises:
            InputError: If the examples are missing, or do not belong to the features.
        """
        return self._evaluated(eval_dataset, eval_examples, ignore_keys, metric_key_prefix)

    def predict(  # type: ignore[override]
        self,
        predict_dataset: Any = None,
        predict_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        *,
        test_dataset: Any = None,
        eval_dataset: Any = None,
        eval_examples: Examples | None = None,
    ) -> Any:
        """Answer the questions of a data set.

        Called in Hugging Face's way, with ``predict_dataset``, it returns a ``PredictionOutput``. Called in PrimeQA's
        way, it returns what the post-processing returns, ``{}`` without one: that is with ``eval_dataset``, or with
        nothing for the trainer's own data, or with a post-processing that takes no stage, as PrimeQA's do.

        Args:
            predict_dataset: Features.
            predict_examples: The examples they are windows of; without them the logits are returned.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
            test_dataset: Another name of ``predict_dataset``, that of :meth:`portico.Trainer.predict`.
            eval_dataset: Features, for PrimeQA's way.
            eval_examples: The examples they are windows of, for PrimeQA's way.
        """
        features = test_dataset if predict_dataset is None else predict_dataset
        examples = predict_examples
        plain = features is None or (examples is not None and self._returns_plain_answers())
        if features is None:
            features = self.eval_dataset if eval_dataset is None else eval_dataset
            examples = self.eval_examples if eval_examples is None else eval_examples
        return self._predicted(
            examples,
            features,
            lambda: super(MRCTrainer, self).predict(features, ignore_keys, metric_key_prefix),
            plain=plain,
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log ``logs``; an evaluation that measured nothing, as PrimeQA's may, is not logged."""
        if logs or not self.legacy_metrics:
            super().log(logs, start_time)

    def _with_speed(self, output: Any, prefix: str, start_time: float) -> dict[str, float]:
        if not self.legacy_metrics:
            return super()._with_speed(output, prefix, start_time)
        return {name: value for name, value in output.metrics.items() if name != f"{prefix}_loss"}
