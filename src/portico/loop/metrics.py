"""``compute_metrics``: on the whole evaluation, batch by batch, or by torchmetrics (:func:`batch_metrics` chooses)."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torchmetrics import Metric, MetricCollection
from torchmetrics.text import Perplexity
from transformers import EvalPrediction

from portico.compat import transformers as hf_compat
from portico.compat.tree import map_tensors
from portico.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from portico.compat.annotations import Nested
    from portico.loop.hooks import TrainerHooks

_TORCH_METRICS = (Metric, MetricCollection, dict)


class BatchedComputeMetrics:
    """A ``compute_metrics`` that accumulates by itself (``batch_eval_metrics``).

    It is called as ``function(prediction, compute_result=...)``; its value for the last batch is the result.
    """

    def __init__(self, function: Callable[..., Mapping[str, Any]]) -> None:
        self.function = function
        self._metrics: Mapping[str, Any] = {}

    def update(self, prediction: EvalPrediction, *, is_last: bool = True) -> None:
        """Update with the gathered tensors of a batch; ``is_last`` marks the final batch."""
        self._metrics = self.function(prediction, compute_result=is_last)

    def compute(self) -> Mapping[str, Any]:
        """Return the metrics by name, none when there was no batch."""
        return self._metrics


class TorchMetrics:
    """Metrics of torchmetrics, updated with ``(logits, labels)`` in the shapes that each of them takes.

    The tensors are already gathered from all processes, without the examples that pad the last batch. So each process
    counts everything, and the metrics must not synchronise, which would count everything once per process.

    A metric without a name is named after its class, as in a collection.

    Args:
        metrics: The user's metrics.
        own: Update a copy, because an enclosing evaluation is using the same metrics.
        shifts_labels: Whether labels are aligned with the input tokens, as a causal model takes them, while the
            logits score the next token.
    """

    def __init__(
        self,
        metrics: "Metric | MetricCollection | dict[str, Metric]",
        *,
        own: bool = False,
        shifts_labels: bool = False,
    ) -> None:
        collection = metrics if isinstance(metrics, MetricCollection) else MetricCollection(metrics)  # type: ignore[arg-type]
        self.metrics = collection.clone() if own else collection
        # An interrupted evaluation may have left counts behind.
        self.metrics.reset()
        self._by_form = _split_by_form(self.metrics)
        self._shifts_labels = shifts_labels
        self._num_updates = 0

    def update(self, prediction: EvalPrediction, *, is_last: bool = True) -> None:
        logits, labels = prediction.predictions, prediction.label_ids
        if self._num_updates == 0 and isinstance(labels, torch.Tensor):
            self.metrics.to(labels.device)
        try:
            for form, metrics in self._by_form.items():
                formed = _convert(form, logits, labels, shifts_labels=self._shifts_labels)
                if self._num_updates == 0:
                    _refuse_scores_of_classes(form, metrics, *formed)
                metrics.update(*formed)
        except InputError:
            raise
        except Exception as error:
            error.add_note(
                f"The metrics in `compute_metrics` were updated with preds={_describe_shapes(logits)} and "
                f"target={_describe_shapes(labels)}; convert the logits to the form they take in "
                "`preprocess_logits_for_metrics`, and set `ignore_index=-100` where labels are padded."
            )
            raise
        self._num_updates += 1

    def compute(self) -> Mapping[str, Any]:
        """Return the metrics as plain numbers, arrays as nested lists, and reset the counts."""
        if self._num_updates == 0:
            return {}
        results: dict[str, Any] = {}
        with _without_synchronisation(self.metrics):
            for metrics in self._by_form.values():
                results |= metrics.compute()
        for metrics in self._by_form.values():
            metrics.reset()
        return {name: plain_values(result) for name, result in results.items()}


# How metrics take the predictions and labels of N examples with L tokens or labels each, in C classes.
_CLASSES_SECOND = "multiclass"  # `[N, C]` or `[N, C, L]`, and `[N]` or `[N, L]`
_YES_OR_NO = "binary or multilabel"  # both `[N]` or `[N, L]`, labels integers
_NUMBERS = "regression"  # both `[N]` or `[N, L]`
_CLASSES_LAST = "perplexity"  # `[N, L, C]` and `[N, L]`
_AS_THEY_ARE = "of the user"


def _form(metric: Metric) -> str:
    """Return how ``metric`` takes predictions and labels; for a wrapper, how the metric inside does."""
    for part in metric.modules():
        rooms = {base.__module__.partition("torchmetrics.")[2].partition(".")[0] for base in type(part).__mro__}
        if isinstance(part, Perplexity):
            return _CLASSES_LAST
        if "regression" in rooms:
            return _NUMBERS
        if "classification" in rooms:
            return _YES_OR_NO if getattr(part, "num_classes", None) is None else _CLASSES_SECOND
    return _AS_THEY_ARE


def _split_by_form(metrics: MetricCollection) -> dict[str, MetricCollection]:
    """Split ``metrics`` by the form of input that they take; metric objects and names stay the same."""
    parts: dict[str, dict[str, Metric]] = {}
    for name, metric in metrics.items(keep_base=True, copy_state=False):
        parts.setdefault(_form(metric), {})[name] = metric
    if len(parts) == 1:
        return {next(iter(parts)): metrics}
    names: dict[str, Any] = {"prefix": metrics.prefix, "postfix": metrics.postfix}
    return {form: MetricCollection(part, **names) for form, part in parts.items()}  # type: ignore[arg-type]


def _convert(form: str, logits: "Nested", labels: "Nested", *, shifts_labels: bool) -> tuple["Nested", "Nested"]:
    """Return logits and labels in ``form``; if a model has several outputs, the first one is the logits."""
    if form == _AS_THEY_ARE:
        return logits, labels
    if isinstance(logits, tuple | list) and isinstance(labels, torch.Tensor):
        logits = logits[0]
    if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return logits, labels
    if shifts_labels and logits.ndim == 3 and logits.shape[:2] == labels.shape:
        logits, labels = logits[:, :-1], labels[:, 1:]
    if form == _CLASSES_SECOND and logits.ndim == 3 and logits.shape[:2] == labels.shape:
        # Text models have the classes in the last dimension, models of image masks (`[N, C, H, W]`) in the second.
        logits = logits.movedim(-1, 1)
    elif form in (_YES_OR_NO, _NUMBERS) and logits.shape == (*labels.shape, 1):
        logits = logits.squeeze(-1)
    if form == _YES_OR_NO and labels.is_floating_point():
        # The loss of several labels takes numbers, their metrics take integers.
        labels = labels.long()
    return logits, labels


def _refuse_scores_of_classes(form: str, metrics: MetricCollection, logits: "Nested", labels: "Nested") -> None:
    """Refuse a score for each class, where a metric of one score would compare other entries, or fail in the end."""
    if form not in (_YES_OR_NO, _NUMBERS) or not isinstance(logits, torch.Tensor | np.ndarray):
        return
    num_classes = logits.shape[1] if logits.ndim == 2 and getattr(labels, "ndim", None) == 1 else 1
    if num_classes > 1:
        names = ", ".join(type(metric).__name__ for metric in metrics.values())
        raise InputError(
            f"`compute_metrics` holds {names}, which takes one score for each label, but the model returns "
            f"{num_classes}; give a multiclass metric with `num_classes={num_classes}`, or let "
            "`preprocess_logits_for_metrics` return one score, for two classes `logits.softmax(-1)[:, 1]`."
        )


@contextmanager
def _without_synchronisation(metrics: MetricCollection) -> Iterator[None]:
    """Keep the metrics inside ``metrics`` from synchronising with other processes."""
    saved = {module: module.distributed_available_fn for module in metrics.modules() if isinstance(module, Metric)}
    for metric in saved:
        metric.distributed_available_fn = lambda: False
    try:
        yield
    finally:
        for metric, function in saved.items():
            metric.distributed_available_fn = function


def plain_values(result: object) -> Any:
    """Convert tensors and arrays to values that a log and a JSON file can hold."""
    if isinstance(result, torch.Tensor):
        return result.item() if result.numel() == 1 else result.tolist()
    if isinstance(result, np.ndarray | np.generic):
        return result.item() if result.size == 1 else result.tolist()
    if isinstance(result, Mapping):
        return {name: plain_values(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [plain_values(value) for value in result]
    return result


def _describe_shapes(data: "Nested") -> str:
    described = map_tensors(lambda tensor: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}", data)
    return str(described)


def batch_metrics(trainer: "TrainerHooks", *, nested: bool) -> BatchedComputeMetrics | TorchMetrics | None:
    """Return the batchwise form of the trainer's metrics; ``None`` for a function of all predictions at once.

    An evaluation ``nested`` inside another evaluation needs separate counts.
    """
    compute_metrics = trainer.compute_metrics
    if isinstance(compute_metrics, _TORCH_METRICS) and not _takes_prediction(compute_metrics):
        # What `preprocess_logits_for_metrics` returns is not shifted: it may have aligned it with the labels.
        is_causal = _head(trainer) in hf_compat.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        shifts = (is_causal or trainer._loss_shifts_labels) and trainer.preprocess_logits_for_metrics is None
        return TorchMetrics(compute_metrics, own=nested, shifts_labels=shifts)
    if trainer.args.batch_eval_metrics and callable(compute_metrics):
        return BatchedComputeMetrics(compute_metrics)
    return None


def _takes_prediction(compute_metrics: object) -> bool:
    """Return whether a metric is a function of an ``EvalPrediction``, as for transformers, which only calls it."""
    # Those of torchmetrics that take one argument, such as `MeanMetric`, take numbers.
    if not isinstance(compute_metrics, Metric) or type(compute_metrics).__module__.startswith("torchmetrics."):
        return False
    parameters = inspect.signature(compute_metrics.update)
    for arguments, is_expected in (((None,), True), ((None, None), False)):
        try:
            parameters.bind(*arguments)
        except TypeError:
            is_bound = False
        else:
            is_bound = True
        if is_bound is not is_expected:
            return False
    return True


# ---- Checks before training ----


def check_metrics(trainer: "TrainerHooks", *, evaluates: bool = True) -> None:
    """Refuse metrics that contradict the training arguments or the model and, if they are used, cannot be called."""
    compute_metrics, args = trainer.compute_metrics, trainer.args
    if compute_metrics is None:
        return
    preprocess = trainer.preprocess_logits_for_metrics
    if evaluates and preprocess is not None and not callable(preprocess):
        raise InputTypeError(
            f"`preprocess_logits_for_metrics` is a {type(preprocess).__name__}, which cannot be called; give a "
            "function that takes logits and labels and returns what the metrics get as predictions."
        )
    if isinstance(compute_metrics, _TORCH_METRICS) and not _takes_prediction(compute_metrics):
        entries = compute_metrics.values() if isinstance(compute_metrics, dict) else [compute_metrics]
        kinds = {type(entry).__name__ for entry in entries if not isinstance(entry, Metric | MetricCollection)}
        if kinds or not entries:
            if not evaluates:
                return
            raise InputError(
                f"`compute_metrics` is a dict of {', '.join(sorted(kinds)) or 'nothing'}; give a dict of "
                "`torchmetrics.Metric` by name, at least one, or a function that takes an `EvalPrediction`."
            )
        if args.include_for_metrics:
            raise InputError(
                f"`include_for_metrics={args.include_for_metrics}` gives more than logits and labels to a function, "
                "but `compute_metrics` is made of torchmetrics, which take only logits and labels; leave "
                "`include_for_metrics` out, or give a function."
            )
        if trainer._portico.scores_logits:
            for metric in [module for entry in entries for module in entry.modules() if isinstance(module, Metric)]:
                _check_torch_metric(metric, trainer)
    elif not callable(compute_metrics):
        if not evaluates:
            return
        raise InputTypeError(
            f"`compute_metrics` is a {type(compute_metrics).__name__}, which cannot be called; give a function that "
            "takes an `EvalPrediction` and returns a dict of numbers by name, or a `torchmetrics.Metric`."
        )
    elif args.batch_eval_metrics and "compute_result" not in inspect.signature(compute_metrics).parameters:
        raise InputError(
            "When using `batch_eval_metrics`, your `compute_metrics` function must take a `compute_result` boolean "
            "argument which will be triggered after the last batch of the eval set to signal that the summary "
            "statistics should be returned by the function. Add it, set `batch_eval_metrics=False`, or give a "
            "`torchmetrics.Metric`."
        )


def _check_torch_metric(metric: Metric, trainer: "TrainerHooks") -> None:
    """Refuse a metric that cannot be updated with the logits and labels of the model."""
    name, form = type(metric).__name__, _form(metric)
    try:
        inspect.signature(metric.update).bind(None, None)
    except TypeError as error:
        raise InputError(
            f"`compute_metrics` holds {name}, whose `update{inspect.signature(metric.update)}` cannot be called with "
            "logits and labels; give a function of an `EvalPrediction` that updates it, or a subclass with an "
            "`update(preds, target)`."
        ) from error
    if form == _AS_THEY_ARE:
        if type(metric).__module__.startswith(("torchmetrics.text.", "torchmetrics.detection.")):
            raise InputError(
                f"`compute_metrics` holds {name}, which compares strings or lists, but it would be given tensors of "
                "logits and labels; give a function of an `EvalPrediction` that decodes them and calls the metric."
            )
        return
    if len(trainer.label_names) > 1:
        raise InputError(
            f"`compute_metrics` holds {name}, which takes one tensor of labels, but the model has several "
            f"({', '.join(trainer.label_names)}); give a function of an `EvalPrediction`, or set `label_names` to one."
        )
    if getattr(trainer.args, "predict_with_generate", False):
        raise InputError(
            f"`compute_metrics` holds {name}, which compares scores with labels, but `predict_with_generate=True` "
            "gives it generated tokens, of another length; leave that out, or give a function of an `EvalPrediction`."
        )
    if trainer.preprocess_logits_for_metrics is None:
        _check_classes(metric, form, trainer)
    head = _head(trainer)
    if _TOKEN_HEADS.search(head) and getattr(metric, "ignore_index", -100) != -100:
        hf_compat.logger.warning_once(
            f"`compute_metrics` holds {name} with `ignore_index={metric.ignore_index}`, but the labels of {head} are "
            f"padded with -100; give {name} with `ignore_index=-100`.",
            stacklevel=2,
        )


# The names of transformers' model classes say what the logits are.
_TOKEN_HEADS = re.compile("For(TokenClassification|MaskedLM|CausalLM|ConditionalGeneration)$|LMHeadModel$")
_LABEL_HEADS = re.compile("For(Token|Sequence|Image|Audio|Video)Classification$")


def _head(trainer: "TrainerHooks") -> str:
    return type(hf_compat.unwrap_peft_model(trainer.model)).__name__


def _check_classes(metric: Metric, form: str, trainer: "TrainerHooks") -> None:
    """Warn about a metric whose kind or number of classes differs from the head that the model's class names."""
    config: Any = getattr(trainer.model, "config", None)
    head = _head(trainer)
    name = type(metric).__name__
    num_classes = getattr(metric, "num_classes", None)
    if config is None or not (_LABEL_HEADS.search(head) or _TOKEN_HEADS.search(head)):
        return
    is_of_labels = _LABEL_HEADS.search(head) is not None
    num_scores: Any = config.num_labels if is_of_labels else getattr(config, "vocab_size", num_classes)
    if form == _CLASSES_SECOND and num_classes != num_scores:
        hf_compat.logger.warning_once(
            f"`compute_metrics` holds {name} with `num_classes={num_classes}`, but {head} has {num_scores} scores; "
            f"set `num_classes={num_scores}`, or convert the logits in `preprocess_logits_for_metrics`.",
            stacklevel=2,
        )
    # Without a `problem_type` the labels decide whether a sequence has one label or several.
    problem = config.problem_type if is_of_labels else None
    is_multiclass = _TOKEN_HEADS.search(head) or problem == "single_label_classification"
    if is_multiclass and num_scores > 1 and form in (_YES_OR_NO, _NUMBERS):
        hf_compat.logger.warning_once(
            f"`compute_metrics` holds {name}, which takes one score for each label, but {head} has {num_scores}; give "
            f"a multiclass metric with `num_classes={num_scores}`, or convert the logits in "
            "`preprocess_logits_for_metrics`.",
            stacklevel=2,
        )
    if problem == "multi_label_classification" and form == _CLASSES_SECOND:
        hf_compat.logger.warning_once(
            f"`compute_metrics` holds {name}, which takes one label for each example, but {head} has "
            f"`problem_type='multi_label_classification'`; give a multilabel metric with `num_labels={num_scores}`.",
            stacklevel=2,
        )
