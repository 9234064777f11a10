"""``compute_metrics``: of the whole evaluation, batch by batch, or by torchmetrics (:func:`batch_metrics` chooses)."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torchmetrics import Metric, MetricCollection
from transformers import EvalPrediction

from portico.errors import InputError, InputTypeError
from portico.tree import map_tensors

if TYPE_CHECKING:
    from portico.annotations import ComputeMetrics, Nested
    from portico.arguments import TrainingArguments

_TORCH_METRICS = (Metric, MetricCollection, dict)


class BatchedComputeMetrics:
    """A ``compute_metrics`` that accumulates by itself (``batch_eval_metrics``).

    It is called as ``function(prediction, compute_result=...)``; its value for the last batch is the result.
    """

    def __init__(self, function: Callable[..., Mapping[str, Any]]) -> None:
        self.function = function
        self._metrics: Mapping[str, Any] = {}

    def update(self, prediction: EvalPrediction, *, is_last: bool = True) -> None:
        """Update with the gathered tensors of a batch; ``is_last`` marks the final one."""
        self._metrics = self.function(prediction, compute_result=is_last)

    def compute(self) -> Mapping[str, Any]:
        """Return the metrics by name, none when there was no batch."""
        return self._metrics


class TorchMetrics:
    """Metrics of torchmetrics, updated with ``(logits, labels)``.

    The tensors are already gathered from all processes, without the examples that pad the last batch. So each process
    counts everything, and the metrics must not synchronise, which would count everything once per process.

    A metric without a name is named after its class, as in a collection. With ``own`` a copy is updated, because an
    enclosing evaluation is using the same metrics.
    """

    def __init__(self, metrics: "Metric | MetricCollection | dict[str, Metric]", *, own: bool = False) -> None:
        collection = metrics if isinstance(metrics, MetricCollection) else MetricCollection(metrics)  # type: ignore[arg-type]
        self.metrics = collection.clone() if own else collection
        # An interrupted evaluation may have left counts behind.
        self.metrics.reset()
        self._num_updates = 0

    def update(self, prediction: EvalPrediction, *, is_last: bool = True) -> None:
        logits, labels = prediction.predictions, prediction.label_ids
        if self._num_updates == 0 and isinstance(logits, torch.Tensor):
            self.metrics.to(logits.device)
        try:
            self.metrics.update(logits, labels)
        except Exception as error:
            error.add_note(
                f"The metrics in `compute_metrics` were updated with preds={_described(logits)} and "
                f"target={_described(labels)}; convert the logits to the form they take in "
                "`preprocess_logits_for_metrics`, and set `ignore_index=-100` where labels are padded."
            )
            raise
        self._num_updates += 1

    def compute(self) -> Mapping[str, Any]:
        """Return the metrics as plain numbers, arrays as nested lists, and reset the counts."""
        if self._num_updates == 0:
            return {}
        with _without_synchronisation(self.metrics):
            results = self.metrics.compute()
        self.metrics.reset()
        return {name: _plain(result) for name, result in results.items()}


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


def _plain(result: object) -> Any:
    """Convert tensors and arrays to values that a log and a JSON file can hold."""
    if isinstance(result, torch.Tensor):
        return result.item() if result.numel() == 1 else result.tolist()
    if isinstance(result, np.ndarray | np.generic):
        return result.item() if result.size == 1 else result.tolist()
    if isinstance(result, Mapping):
        return {name: _plain(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [_plain(value) for value in result]
    return result


def _described(data: "Nested") -> str:
    described = map_tensors(lambda tensor: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}", data)
    return str(described)


def batch_metrics(
    compute_metrics: "ComputeMetrics | None", *, batched: bool, nested: bool
) -> BatchedComputeMetrics | TorchMetrics | None:
    """Return the batchwise form of ``compute_metrics``; ``None`` for a function of all predictions at once.

    ``batched`` is ``batch_eval_metrics``; an evaluation ``nested`` inside another one needs its own counts.
    """
    if isinstance(compute_metrics, _TORCH_METRICS):
        return TorchMetrics(compute_metrics, own=nested)
    return BatchedComputeMetrics(compute_metrics) if batched and callable(compute_metrics) else None


def check_metrics(compute_metrics: "ComputeMetrics | None", args: "TrainingArguments") -> None:
    """Refuse metrics that cannot be called, or that contradict the training arguments."""
    if compute_metrics is None:
        return
    if isinstance(compute_metrics, _TORCH_METRICS):
        entries = compute_metrics.values() if isinstance(compute_metrics, dict) else [compute_metrics]
        kinds = {type(entry).__name__ for entry in entries if not isinstance(entry, Metric | MetricCollection)}
        if kinds or not entries:
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
    elif not callable(compute_metrics):
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
