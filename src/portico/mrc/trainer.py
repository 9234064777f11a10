"""``MRCTrainer``: a ``Trainer`` that evaluates by answers."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Sampler, SequentialSampler
from transformers import EvalPrediction

from portico.checkpoint.writer import naming_full_disk
from portico.compat.annotations import Batch, DataCollator, EvalExamples, Loader, Nested
from portico.compat.annotations import Examples as Features
from portico.compat.transformers import EvalLoopOutput, PredictionOutput, has_length
from portico.errors import InputError, InputTypeError
from portico.loop.core import TrainerCore
from portico.loop.evaluation import EvaluationSession
from portico.loop.outputs import convert_to_arrays
from portico.loop.validation import check_examples, name_sets
from portico.mrc.collators import RightPaddingCollator, batch_by_columns
from portico.mrc.datasets.examples import Examples
from portico.trainer import Trainer
from portico.trust.disk import write_text
from portico.trust.names import data_only


@dataclass(eq=False, repr=False, kw_only=True)
class AnswerSession(EvaluationSession):
    """Post-processes during the evaluation if the post-processing can stream, otherwise at the end.

    ``loader`` yields the features in order, ``on_answered`` is called with the result, and the names of the written
    files end in ``file_suffix``. For ``post_process_function`` see :class:`MRCTrainer`.
    """

    # Files in PrimeQA's form: middle word of the file name, and attribute of the answers in the file.
    file_attributes: ClassVar[Mapping[str, str]] = {
        "predictions": "predictions",
        "predictions_processed": "processed_predictions",
        "references": "label_ids",
    }

    examples: Sequence[Mapping[str, Any]]
    features: Any
    post_process_function: Any
    on_answered: Callable[[Any], None]
    file_suffix: str = ""

    def __post_init__(self) -> None:
        self.prediction_loss_only = None  # answers are needed even if there are no metrics of them
        super().__post_init__()
        self._num_kept = 0
        can_stream = hasattr(self.post_process_function, "begin")
        self._streamed = self.post_process_function.begin(self.examples, self.features) if can_stream else None
        # The metrics are computed from the answers, not from batches of logits.
        self._answer_metrics = self.batch_metrics
        self.batch_metrics = None
        self.keeps_arrays = True

    def keep(self, loss: Tensor | None, logits: Nested | None, labels: Nested | None, inputs: Batch) -> None:
        if self._streamed is None:
            super().keep(loss, logits, labels, inputs)
            return
        self.keep_loss(loss)
        # -100 is the padding of transformers' `Trainer.evaluation_loop`.
        padded = self.trainer.accelerator.pad_across_processes(logits, dim=1, pad_index=-100)
        rows = convert_to_arrays(self.trainer.gather_function(padded))
        if not isinstance(rows, tuple | list):
            rows = (rows,)
        if np.ndim(rows[0]) == 0:
            raise InputError(
                f"{type(self.model).__name__} was asked for logits and returned a single number first, as a model "
                "does that computes its loss; name the columns of the labels, as in "
                "`label_names=['start_positions', 'end_positions']`, so that the loss is not taken for logits."
            )
        # Gathered batches are in the order of the features; the last one may end with rows that repeat the first.
        first = self._num_kept
        self._num_kept = min(first + len(rows[0]), len(self.features))
        kept = [array[: self._num_kept - first] for array in rows]
        self._streamed.update(kept, np.arange(first, self._num_kept))

    def compute_metrics(
        self, logits: Nested | None, labels: Nested | None, losses: Nested | None, inputs: Batch
    ) -> Mapping[str, Any]:
        """Finish the post-processing, write its files once, and return the user's metrics of the answers."""
        stage = "predict" if self.description == "Prediction" else self.metric_key_prefix
        if self._streamed is not None:
            answered = self._streamed.compute()
            self._streamed = None  # frees the collected candidates
        else:
            stages = [stage] if stage == "predict" and takes_stage(self.post_process_function) else []
            output = self.whole_output(logits, labels, losses)
            answered = self.post_process_function(self.examples, self.features, output, *stages)
        self.on_answered(answered)
        if self.trainer.args.should_save:
            with naming_full_disk(Path(self.trainer.args.output_dir)):
                self._write(answered, stage)
        compute_metrics: Any = self.trainer.compute_metrics
        is_labelled = getattr(answered, "is_labelled", None)
        if is_labelled is None:
            is_labelled = getattr(answered, "label_ids", None) is not None
        if compute_metrics is None or not is_labelled:
            return {}
        if self._answer_metrics is None:
            return compute_metrics(answered)
        processed = getattr(answered, "processed_predictions", None)  # PrimeQA's predictions are all candidates
        scored = answered if processed is None else EvalPrediction(processed, answered.label_ids)
        for batch in answered.batches() if hasattr(answered, "batches") else [scored]:
            self._answer_metrics.update(batch)
        return self._answer_metrics.compute()

    def whole_output(self, logits: Nested | None, labels: Nested | None, losses: Nested | None) -> object:
        """Return the argument of a post-processing that does not stream."""
        return logits

    def _write(self, answered: object, stage: str) -> None:
        """Write answers with their ``write(folder, prefix)``, or as PrimeQA's files if they have its attributes."""
        folder = self.trainer.args.output_dir
        if hasattr(answered, "write"):
            answered.write(folder, f"{stage}{self.file_suffix}")
        elif all(hasattr(answered, attribute) for attribute in self.file_attributes.values()):
            for name, attribute in self.file_attributes.items():
                value = getattr(answered, attribute)
                if value is None:  # questions without gold answers
                    continue
                text = json.dumps(value, indent=4, default=lambda array: np.asarray(array).tolist())
                write_text(Path(folder, f"{stage}_{name}{self.file_suffix}.json"), text)


def takes_stage(function: Callable[..., Any]) -> bool:
    """Return whether a post-processing takes the stage as an argument: Hugging Face's do, PrimeQA's do not."""
    # transformers' examples (trainer_qa.py, trainer_seq2seq_qa.py) pass "predict" as the fourth argument.
    parameters = inspect.signature(function).parameters
    return "stage" in parameters or len(parameters) > 3


class AnswerCore(TrainerCore):
    """Answers the examples of an :class:`MRCTrainer` where it evaluates."""

    trainer: "MRCTrainer"
    # Strategies such as ddp_spawn evaluate in worker processes, which send these attributes back.
    carried_from_workers = (*TrainerCore.carried_from_workers, "answered")

    @property
    def scores_logits(self) -> bool:  # type: ignore[override]
        return self.trainer.post_process_function is None

    @property
    def is_answering(self) -> bool:
        """Whether the current evaluation answers examples, and does not only measure the loss."""
        return self.trainer._answering_options is not None

    def add_speed(self, output: EvalLoopOutput, prefix: str, start_time: float) -> dict[str, float]:
        if not self.trainer.legacy_metrics:
            return super().add_speed(output, prefix, start_time)
        left_out = (f"{prefix}_loss", f"{prefix}_model_preparation_time")
        return {name: value for name, value in (output.metrics or {}).items() if name not in left_out}

    def adopt_model(self, model: nn.Module | None, model_init: Callable[..., nn.Module] | None) -> None:
        super().adopt_model(model, model_init)
        # The labels are parameters of the head; transformers' `find_labels` only sees the signature of the model.
        if self.trainer._head_parameters() and self.trainer.args.label_names is None:
            positions = ("start_positions", "end_positions")
            self.trainer.label_names = [name for name in positions if name in self.trainer._head_parameters()]

    def prepare_batching(self, dataset: Features, data_collator: DataCollator) -> tuple[Features, DataCollator]:
        features, collator = batch_by_columns(dataset, data_collator)
        tokenizers = (self.trainer.processing_class, getattr(data_collator, "tokenizer", None))
        pads_left = any(getattr(tokenizer, "padding_side", None) == "left" for tokenizer in tokenizers)
        if collator is data_collator and pads_left:
            collator = RightPaddingCollator(data_collator)
        return features, collator

    def evaluation_session(self, dataloader: "Loader", **options: Any) -> EvaluationSession:
        answering = self.trainer._answering_options
        if answering is None:
            return super().evaluation_session(dataloader, **options)
        return self.trainer._session_class(
            cast("Any", self.trainer),
            dataloader,
            post_process_function=self.trainer.post_process_function,
            on_answered=partial(setattr, self.trainer, "answered"),
            **answering,
            **options,
        )

    def evaluating_own_data(self, name: str | None) -> AbstractContextManager[Any]:
        features, examples = self.trainer.eval_dataset, self.trainer.eval_examples
        if isinstance(features, Mapping):
            features, examples = features[name], None if examples is None else examples[name]
        return self.trainer._answering(examples, features)


@data_only
class MRCTrainer(Trainer, core=AnswerCore):
    """Trains extractive models and evaluates their answers instead of their logits.

    Evaluation runs the model over features (windows of a passage), turns logits into answers with
    ``post_process_function``, writes them into ``args.output_dir`` and passes them to ``compute_metrics``. A
    post-processing that streams, such as :class:`~portico.mrc.SpanPostProcessing`, needs no memory for the logits of
    the whole set. Further arguments are passed on to :class:`~portico.trainer.Trainer`.

    Args:
        eval_examples: The examples of ``eval_dataset``.
        eval_dataset: Features to evaluate on.
        post_process_function: ``f(examples, features, predictions)`` or, for predictions,
            ``f(examples, features, predictions, "predict")``; or an object with ``begin(examples, features)`` whose
            result has ``update(logits, feature_indices)`` and ``compute()``.
        legacy_metrics: Return and log only the metrics of ``compute_metrics``, ``{}`` without one, as PrimeQA's
            trainer does; by default loss and speed are added.

    Attributes:
        answered: Result of the last post-processing.
    """

    _session_class: type[AnswerSession] = AnswerSession

    def __init__(
        self,
        *args: Any,
        eval_examples: Examples | None = None,
        eval_dataset: "EvalExamples | None" = None,
        post_process_function: Callable[..., Any] | None = None,
        legacy_metrics: bool = False,
        **kwargs: Any,
    ) -> None:
        _check_kinds(eval_examples, post_process_function, legacy_metrics)
        self.eval_examples: Any = eval_examples
        self.post_process_function: Any = post_process_function
        self.legacy_metrics = legacy_metrics
        self.answered: Any = None
        self._answering_options: dict[str, Any] | None = None
        kwargs["eval_dataset"] = eval_dataset
        super().__init__(*args, **kwargs)
        limits = (
            self._portico.lightning_trainer.limit_val_batches,
            self._portico.lightning_trainer.limit_test_batches,
        )
        if post_process_function is not None and any(isinstance(limit, int) or limit < 1 for limit in limits):
            raise InputError(
                "`lightning_kwargs` limits evaluations to some batches, but an answer needs all features of its "
                "question; give fewer `eval_examples` with their features (`data.max_eval_samples`), and `max_steps` "
                "instead of `fast_dev_run`."
            )

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: "EvalExamples | None" = None,
        eval_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate the answers to ``eval_examples`` and return loss, speed and metrics.

        Args:
            eval_dataset: Features; by default the trainer's own. The datasets of a dict are evaluated one by one,
                with the key in the names of metrics and files.
            eval_examples: Their examples; by default the trainer's own. A dict with the same keys if the features
                are a dict.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of metric names and file names.
            **gen_kwargs: Keywords of ``generate`` for this evaluation, if the trainer generates answers; they override
                the training arguments.

        Raises:
            InputError: If the examples are missing, or do not belong to the features.
        """
        features = self.eval_dataset if eval_dataset is None else eval_dataset
        examples = self.eval_examples if eval_examples is None else eval_examples
        self._check_examples(examples)
        if not isinstance(features, Mapping):
            # Typed loosely: the next class may take keywords of generation.
            evaluate: Callable[..., dict[str, float]] = super().evaluate
            with self._answering(examples, features):
                return evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        examples = dict.fromkeys(features) if examples is None else examples
        if not isinstance(examples, Mapping) or set(examples) != set(features):
            named = (
                f"a dict of {', '.join(map(repr, examples))}"
                if isinstance(examples, Mapping)
                else f"a {type(examples).__name__} without names"
            )
            raise InputError(
                f"`eval_dataset` names the datasets {', '.join(map(repr, features))}, and `eval_examples` is "
                f"{named}; give a dict of the examples of each, with the same names."
            )
        metrics: dict[str, float] = {}
        for name, part in features.items():
            metrics |= self.evaluate(part, examples[name], ignore_keys, f"{metric_key_prefix}_{name}", **gen_kwargs)
        return metrics

    def predict(  # type: ignore[override]
        self,
        predict_dataset: Features | None = None,
        predict_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        *,
        test_dataset: Features | None = None,
        eval_dataset: Features | None = None,
        eval_examples: Examples | None = None,
    ) -> Any:
        """Answer the questions of a dataset.

        Called as in Hugging Face's examples, with ``predict_dataset``, it returns a ``PredictionOutput``. Called as in
        PrimeQA, it returns the result of the post-processing, ``{}`` without one: with ``eval_dataset``, or without
        data for the trainer's own, or with a post-processing that takes no stage, as PrimeQA's do.

        Args:
            predict_dataset: Features.
            predict_examples: Their examples; without them the logits are returned.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of metric names.
            test_dataset: The same as ``predict_dataset``, as :meth:`portico.Trainer.predict` calls it.
            eval_dataset: Features, in PrimeQA's call.
            eval_examples: Their examples, in PrimeQA's call.
        """
        # transformers' example calls `predict(predict_dataset, predict_examples)`, PrimeQA `predict(eval_dataset,
        # eval_examples)`: given by position, only the post-processing distinguishes them.
        features = test_dataset if predict_dataset is None else predict_dataset
        examples = predict_examples
        plain = features is None
        if plain:
            features = self.eval_dataset if eval_dataset is None else eval_dataset
            examples = self.eval_examples if eval_examples is None else eval_examples
        return self._predict_answers(features, examples, ignore_keys, metric_key_prefix, plain=plain)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log ``logs``, unless an evaluation with ``legacy_metrics`` has none."""
        if logs or not self.legacy_metrics:
            super().log(logs, start_time)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is not None:
            return
        super()._set_signature_columns_if_needed()
        assert self._signature_columns is not None
        if parameters := self._head_parameters():
            of_head = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
            columns = dict.fromkeys([*self._signature_columns, *of_head])
            # The model passes its `**kwargs` to the head; no column has that name.
            self._signature_columns = [name for name in columns if name != "kwargs"]

    def _head_parameters(self) -> Mapping[str, inspect.Parameter]:
        head = getattr(self.model, "task_head", None)
        return {} if head is None else inspect.signature(head.forward).parameters

    def _get_eval_sampler(self, eval_dataset: Features) -> Sampler[int] | None:
        # Post-processing finds the features of an example by their order.
        return SequentialSampler(eval_dataset) if has_length(eval_dataset) else None

    @contextmanager
    def _answering(
        self, examples: Examples | None, features: Features | None, *, file_suffix: str = ""
    ) -> Iterator[None]:
        """Let the evaluation in this context answer ``examples``, unless it only measures the loss."""
        options: dict[str, Any] | None = None
        if examples is not None and self.post_process_function is not None and not self.args.prediction_loss_only:
            if features is None:
                raise InputError("There are examples to answer but no features of them; give `eval_dataset` too.")
            options = {"examples": examples, "features": features, "file_suffix": file_suffix}
        # Evaluations can be nested: a callback may evaluate during an evaluation.
        enclosing = self._answering_options
        self._answering_options = options or enclosing
        try:
            yield
        finally:
            self._answering_options = enclosing

    def _check_examples(self, examples: object) -> None:
        if examples is None and self.post_process_function is not None:
            raise InputError(
                "There is a `post_process_function` but no examples to answer; give `eval_examples`, to the trainer "
                "or to `evaluate()`."
            )

    def _predict_answers(
        self,
        features: Features | None,
        examples: Examples | None,
        ignore_keys: list[str] | None,
        prefix: str,
        *,
        plain: bool = False,
        **gen_kwargs: Any,
    ) -> Any:
        """Predict, and return the answers in a ``PredictionOutput``.

        They are returned as the post-processing did if ``plain``, or if it takes no stage, as PrimeQA's do.
        """
        if isinstance(features, ConcatDataset) and examples is not None:
            raise InputError(
                f"A prediction answers the questions of one dataset, and there are {len(features.datasets)}; call "
                "`predict` for each of them, with its examples."
            )
        self.answered = None
        metrics = self.compute_metrics
        function = self.post_process_function
        if function is not None and examples is None:
            self.compute_metrics = None  # there are no answers that it could score
        elif function is not None and not hasattr(function, "begin"):
            plain = plain or not takes_stage(function)
        predict: Callable[..., PredictionOutput] = super().predict
        try:
            with self._answering(examples, features):
                output = predict(features, ignore_keys, prefix, **gen_kwargs)
        finally:
            self.compute_metrics = metrics
        answered: Any = self.answered
        if plain:
            return {} if answered is None else answered
        if answered is None:
            return output
        return PredictionOutput(
            predictions=getattr(answered, "predictions", answered),
            label_ids=getattr(answered, "label_ids", None),
            metrics=output.metrics,
        )


def _check_kinds(eval_examples: object, post_process_function: object, legacy_metrics: object) -> None:
    """Refuse parts of the wrong type, which would fail only in the first evaluation."""
    for name, examples in name_sets("eval_examples", eval_examples):
        check_examples(name, examples)
        if isinstance(examples, list) and examples and isinstance(examples[0], str | int | float | None):
            raise InputTypeError(
                f"`{name}` holds a {type(examples[0]).__name__}; give a dict for each example, with the keys id, "
                "question, context and answers."
            )
    if post_process_function is not None and not callable(post_process_function):
        raise InputTypeError(
            f"`post_process_function` is a {type(post_process_function).__name__}; give a function that turns "
            "logits into answers, such as `SpanPostProcessing()`."
        )
    if not isinstance(legacy_metrics, bool):
        raise InputTypeError(f"`legacy_metrics={legacy_metrics!r}` is not a bool; set it to True or False.")
