"""``MRCTrainer``: a ``Trainer`` that evaluates by answers."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.data import Sampler, SequentialSampler
from transformers.trainer_utils import PredictionOutput, has_length

from portico.errors import InputError
from portico.evaluation.session import EvaluationSession
from portico.mrc.session import AnswerSession
from portico.trainer import Trainer

Examples = Sequence[Mapping[str, Any]]


class MRCTrainer(Trainer):
    """Trains readers and evaluates their answers instead of their logits.

    Evaluation runs the model over features (windows of a passage), turns logits into answers with
    ``post_process_function``, writes them into ``args.output_dir`` and gives them to ``compute_metrics``. With a
    post-processing that streams, such as :class:`~portico.mrc.post_processing.SpanPostProcessing`, the logits of the
    whole set are never held.

    Args:
        *args: As in :class:`~portico.trainer.Trainer`.
        eval_examples: The examples that ``eval_dataset`` holds the windows of.
        eval_dataset: Features to evaluate on.
        post_process_function: ``f(examples, features, predictions)`` or, for predictions,
            ``f(examples, features, predictions, "predict")``; or an object with ``begin(examples, features)`` whose
            result has ``update(logits, feature_indices)`` and ``compute()``.
        **kwargs: As in :class:`~portico.trainer.Trainer`.

    Attributes:
        answered: What the last post-processing returned.
    """

    _carried_from_workers = (*Trainer._carried_from_workers, "answered")

    def __init__(
        self,
        *args: Any,
        eval_examples: Examples | None = None,
        eval_dataset: Any = None,
        post_process_function: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.eval_examples = eval_examples
        self.post_process_function: Any = post_process_function
        self.answered: Any = None
        self._examples_of_run: tuple[Examples, Any] | None = None
        super().__init__(*args, eval_dataset=eval_dataset, **kwargs)  # type: ignore[misc]

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Any = None,
        eval_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate the answers to ``eval_examples`` and return loss, speed and metrics.

        Args:
            eval_dataset: Features; by default the trainer's own.
            eval_examples: The examples they are windows of; by default the trainer's own.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name, and of the files.
        """
        features = self.eval_dataset if eval_dataset is None else eval_dataset
        examples = self.eval_examples if eval_examples is None else eval_examples
        return self._answering(
            examples, features, lambda: super(MRCTrainer, self).evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        )

    def predict(  # type: ignore[override]
        self,
        predict_dataset: Any = None,
        predict_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        *,
        eval_dataset: Any = None,
        eval_examples: Examples | None = None,
    ) -> Any:
        """Answer the questions of a data set.

        Called with ``predict_dataset`` (Hugging Face's way) it returns a ``PredictionOutput``; called with
        ``eval_dataset``, or with nothing for the trainer's own data (PrimeQA's way), what the post-processing
        returns, ``{}`` without one.

        Args:
            predict_dataset: Features.
            predict_examples: The examples they are windows of; without them the logits are returned.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
            eval_dataset: Features, for PrimeQA's way.
            eval_examples: The examples they are windows of, for PrimeQA's way.
        """
        if predict_dataset is not None:
            output: PredictionOutput = self._answering(
                predict_examples,
                predict_dataset,
                lambda: super(MRCTrainer, self).predict(predict_dataset, ignore_keys, metric_key_prefix),
            )
            return output if predict_examples is None else self._with_answers(output)
        features = self.eval_dataset if eval_dataset is None else eval_dataset
        examples = self.eval_examples if eval_examples is None else eval_examples
        self.answered = None
        self._answering(
            examples, features, lambda: super(MRCTrainer, self).predict(features, ignore_keys, metric_key_prefix)
        )
        return {} if self.answered is None else self.answered

    def _with_answers(self, output: PredictionOutput) -> PredictionOutput:
        answered = self.answered
        return PredictionOutput(
            predictions=getattr(answered, "predictions", answered),
            label_ids=getattr(answered, "label_ids", None),
            metrics=output.metrics,
        )

    def _answering(self, examples: Examples | None, features: Any, run: Callable[[], Any]) -> Any:
        """Call ``run`` with its evaluation session answering ``examples``, where there are any."""
        if examples is None or self.post_process_function is None:
            return run()
        if features is None:
            raise InputError("There are examples to answer but no features of them; give `eval_dataset` too.")
        enclosing, self._examples_of_run = self._examples_of_run, (examples, features)
        try:
            return run()
        finally:
            self._examples_of_run = enclosing

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        if self._examples_of_run is None:
            return super()._evaluation_session(dataloader, **options)
        examples, features = self._examples_of_run
        return AnswerSession(
            self,
            dataloader,
            examples=examples,
            features=features,
            post_process_function=self.post_process_function,
            on_answered=self._keep_answers,
            **options,
        )

    def _keep_answers(self, answered: Any) -> None:
        self.answered = answered

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        # Post-processing finds the features of an example by their order.
        return SequentialSampler(eval_dataset) if has_length(eval_dataset) else None

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is not None:
            return
        super()._set_signature_columns_if_needed()
        head = getattr(self.model, "task_head", None)
        if head is not None:
            assert self._signature_columns is not None
            self._signature_columns += list(inspect.signature(head.forward).parameters)
