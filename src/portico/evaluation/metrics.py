"""What a user may give as ``compute_metrics``, and how an evaluation calls it."""

import inspect
from typing import Any

from torchmetrics import Metric, MetricCollection

from portico.errors import InputError, InputTypeError
from portico.evaluation.streaming import BatchMetrics, FunctionOfBatches
from portico.evaluation.torch_metrics import TorchMetrics, is_torch_metrics


def batch_metrics(compute_metrics: Any, *, batched: bool, nested: bool) -> BatchMetrics | None:
    """Return what ``compute_metrics`` streams with; ``None`` for a function that wants all predictions at once.

    Args:
        compute_metrics: What the user gave.
        batched: Whether ``batch_eval_metrics`` is set.
        nested: Whether this is an evaluation inside another one.
    """
    if is_torch_metrics(compute_metrics):
        return TorchMetrics(compute_metrics, own=nested)
    return FunctionOfBatches(compute_metrics) if batched and compute_metrics is not None else None


def check_metrics(compute_metrics: Any, args: Any) -> None:
    """Refuse metrics that an evaluation could not call.

    Raises:
        InputError: Names what is allowed (a ``TypeError`` too for what cannot be called).
    """
    if is_torch_metrics(compute_metrics):
        _check_torch_metrics(compute_metrics, args)
    elif compute_metrics is not None and not callable(compute_metrics):
        raise InputTypeError(
            f"`compute_metrics` is a {type(compute_metrics).__name__}, which cannot be called; give a function that "
            "takes an `EvalPrediction` and returns a dict of numbers by name, or a `torchmetrics.Metric`."
        )
    elif args.batch_eval_metrics and compute_metrics is not None:
        _check_function_of_batches(compute_metrics)


def _check_function_of_batches(compute_metrics: Any) -> None:
    if "compute_result" not in inspect.signature(compute_metrics).parameters:
        raise InputError(
            "`batch_eval_metrics=True` calls `compute_metrics` once for every batch, so it must take a boolean "
            "`compute_result` argument that tells it to return the metrics of all batches so far; add it to the "
            "function, set `batch_eval_metrics=False`, or give a `torchmetrics.Metric`."
        )


def _check_torch_metrics(compute_metrics: Any, args: Any) -> None:
    entries = compute_metrics.values() if isinstance(compute_metrics, dict) else [compute_metrics]
    others = sorted({type(entry).__name__ for entry in entries if not isinstance(entry, Metric | MetricCollection)})
    if others or not entries:
        raise InputError(
            f"`compute_metrics` is a dict of {', '.join(others) or 'nothing'}; give a dict of `torchmetrics.Metric` "
            "by name, at least one, or a function that takes an `EvalPrediction`."
        )
    if args.include_for_metrics:
        raise InputError(
            f"`include_for_metrics={args.include_for_metrics}` gives more than logits and labels to a function, but "
            "`compute_metrics` is made of torchmetrics, which take logits and labels alone; leave "
            "`include_for_metrics` out, or give a function."
        )
