"""What a trainer gives to the head of a model with exchangeable heads."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

from torch.utils.data import ConcatDataset, Sampler, SequentialSampler
from transformers.trainer_utils import PredictionOutput, has_length

from portico.errors import InputError
from portico.evaluation.session import EvaluationSession
from portico.mrc.evaluation import AnswerSession, takes_stage
from portico.trainer import Trainer

_POSITIONS = ("start_positions", "end_positions")


class HeadColumns(Trainer):
    """Looks for labels and columns in the signature of the head in use, where the model has one."""

    def _take_model(self, model: Any, model_init: Any) -> None:
        super()._take_model(model, model_init)
        head = getattr(self.model, "task_head", None)
        # The labels of a head are those of the model, whose own signature does not show them.
        if head is not None and self.args.label_names is None:
            taken = inspect.signature(head.forward).parameters
            self.label_names = [name for name in _POSITIONS if name in taken]

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is not None:
            return
        super()._set_signature_columns_if_needed()
        head = getattr(self.model, "task_head", None)
        if head is not None:
            assert self._signature_columns is not None
            taken = inspect.signature(head.forward).parameters.values()
            of_head = [parameter.name for parameter in taken if parameter.kind is not parameter.VAR_KEYWORD]
            columns = dict.fromkeys([*self._signature_columns, *of_head])
            # What the model itself does not name is for the head, which takes no column of that name.
            self._signature_columns = [name for name in columns if name != "kwargs"]


Examples: TypeAlias = Sequence[Mapping[str, Any]]


class AnsweringMethods(HeadColumns):
    """How a trainer turns the outputs of its evaluations into answers.

    Args:
        *args: As in :class:`~portico.trainer.Trainer`.
        eval_examples: The examples that ``eval_dataset`` holds the windows of.
        eval_dataset: Features to evaluate on.
        post_process_function: See :class:`~portico.mrc.trainer.MRCTrainer`.
        **kwargs: As in :class:`~portico.trainer.Trainer`.

    Attributes:
        answered: What the last post-processing returned.
    """

    _carried_from_workers = (*Trainer._carried_from_workers, "answered")
    _session_class: type[AnswerSession] = AnswerSession

    def __init__(
        self,
        *args: Any,
        eval_examples: Examples | None = None,
        eval_dataset: Any = None,
        post_process_function: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.eval_examples: Any = eval_examples
        self.post_process_function: Any = post_process_function
        self.answered: Any = None
        self._answering_options: dict[str, Any] | None = None
        super().__init__(*args, eval_dataset=eval_dataset, **kwargs)  # type: ignore[misc]

    def _predicted(
        self, examples: Examples | None, features: Any, run: Callable[[], PredictionOutput], *, plain: bool
    ) -> Any:
        """Run a prediction and return its answers.

        Args:
            examples: The examples to answer; without them the outputs are returned as they are.
            features: The windows of the examples.
            run: Runs the model over the features.
            plain: Return what the post-processing returns, ``{}`` without one, instead of a ``PredictionOutput``.
        """
        if isinstance(features, ConcatDataset) and examples is not None:
            raise InputError(
                f"A prediction answers the questions of one data set, and there are {len(features.datasets)}; call "
                "`predict` for each of them, with its examples."
            )
        self.answered = None
        unanswered = examples is None and self.post_process_function is not None
        with self._without_metrics() if unanswered else nullcontext():
            output: PredictionOutput = self._answering(examples, features, run)
        answered = self.answered
        if plain:
            return {} if answered is None else answered
        if answered is None:
            return output
        return PredictionOutput(
            predictions=getattr(answered, "predictions", answered),
            label_ids=getattr(answered, "label_ids", None),
            metrics=output.metrics,
        )

    @contextmanager
    def _without_metrics(self) -> Iterator[None]:
        """Measure nothing but loss and speed, as the metrics are of answers."""
        metrics, self.compute_metrics = self.compute_metrics, None
        try:
            yield
        finally:
            self.compute_metrics = metrics

    def _returns_plain_answers(self) -> bool:
        """Tell whether the post-processing is PrimeQA's, whose trainer returns from a prediction what it returns."""
        function = self.post_process_function
        return function is not None and not hasattr(function, "begin") and not takes_stage(function)

    def _evaluated_by_name(
        self, features: Mapping[str, Any], examples: Any, prefix: str, evaluate: Callable[[Any, Any, str], Any]
    ) -> dict[str, float]:
        """Evaluate data sets one by one, each name behind the prefix of its metrics and files.

        Args:
            features: The features of each data set.
            examples: The examples of each data set, by the same names.
            prefix: Prefix of every metric's name.
            evaluate: Takes features, examples and prefix of one data set.
        """
        self._check_examples(examples)
        if examples is None:
            examples = dict.fromkeys(features)
        if not isinstance(examples, Mapping) or set(examples) != set(features):
            raise InputError(
                f"`eval_dataset` names the data sets {', '.join(map(repr, features))}, and `eval_examples` is "
                f"{_named(examples)}; give a dict of the examples of each, with the same names."
            )
        metrics: dict[str, float] = {}
        for name, its_features in features.items():
            metrics |= evaluate(its_features, examples[name], f"{prefix}_{name}")
        return metrics

    def _check_examples(self, examples: Any) -> None:
        """Refuse an evaluation that has to answer, and does not know the questions."""
        if examples is None and self.post_process_function is not None:
            raise InputError(
                "There is a `post_process_function` but no examples to answer; give `eval_examples`, to the trainer "
                "or to `evaluate()`."
            )

    def _evaluated(
        self, eval_dataset: Any, eval_examples: Any, ignore_keys: list[str] | None, prefix: str, **gen_kwargs: Any
    ) -> dict[str, float]:
        """Evaluate with answers, dicts of data sets one by one; data that are not given are the trainer's own."""
        features = self.eval_dataset if eval_dataset is None else eval_dataset
        examples = self.eval_examples if eval_examples is None else eval_examples
        if isinstance(features, Mapping):
            of_reader: Callable[..., Any] = self.evaluate  # takes the examples too
            return self._evaluated_by_name(
                features,
                examples,
                prefix,
                lambda part, its_examples, name: of_reader(part, its_examples, ignore_keys, name, **gen_kwargs),
            )
        self._check_examples(examples)
        evaluate: Callable[..., dict[str, float]] = super().evaluate
        metrics: dict[str, float] = self._answering(
            examples, features, lambda: evaluate(eval_dataset, ignore_keys, prefix, **gen_kwargs)
        )
        return metrics

    def _answering(
        self, examples: Examples | None, features: Any, run: Callable[[], Any], *, file_suffix: str = ""
    ) -> Any:
        """Call ``run`` with its evaluation session answering ``examples``, where there are any.

        With ``prediction_loss_only`` nothing is answered, as there are no outputs to answer from.
        """
        if examples is None or self.post_process_function is None or self.args.prediction_loss_only:
            return run()
        if features is None:
            raise InputError("There are examples to answer but no features of them; give `eval_dataset` too.")
        enclosing = self._answering_options
        self._answering_options = {"examples": examples, "features": features, "file_suffix": file_suffix}
        try:
            return run()
        finally:
            self._answering_options = enclosing

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        if self._answering_options is None:
            return super()._evaluation_session(dataloader, **options)
        return self._session_class(
            self,
            dataloader,
            post_process_function=self.post_process_function,
            on_answered=self._keep_answers,
            **self._answering_options,
            **options,
        )

    def _keep_answers(self, answered: Any) -> None:
        self.answered = answered

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        # Post-processing finds the features of an example by their order.
        return SequentialSampler(eval_dataset) if has_length(eval_dataset) else None


def _named(examples: Any) -> str:
    if isinstance(examples, Mapping):
        return f"a dict of {', '.join(map(repr, examples))}"
    return f"a {type(examples).__name__} without names"


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
