"""Metrics of torchmetrics under the facade: updated batch by batch, so that no logits are kept."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torchmetrics import Metric, MetricCollection
from transformers.trainer_utils import EvalPrediction

from portico.evaluation.streaming import BatchMetrics
from portico.nested import map_tensors


class TorchMetrics(BatchMetrics):
    """Metrics of torchmetrics, updated with ``(logits, labels)``.

    The tensors are those of all processes already, without the examples that fill up the last batch; so each process
    holds the whole count, and the metrics do not synchronise, which would count it once for every process.

    Args:
        metrics: A metric, a collection, or a dict of metrics by name. A metric without a name goes by that of its
            class, as in a collection.
        own: Work on a copy, because an enclosing evaluation is counting with the same metrics.
    """

    def __init__(self, metrics: Any, *, own: bool = False) -> None:
        collection = metrics if isinstance(metrics, MetricCollection) else MetricCollection(metrics)
        self.metrics = collection.clone() if own else collection
        # An evaluation that broke off may have left a count behind.
        self.metrics.reset()
        self._num_updates = 0

    def update(self, prediction: EvalPrediction, *, is_last: bool = True) -> None:
        """Count a batch, on the device where it is."""
        logits, labels = prediction.predictions, prediction.label_ids
        if self._num_updates == 0 and isinstance(logits, torch.Tensor):
            self.metrics.to(logits.device)
        try:
            self.metrics.update(logits, labels)
        except Exception as error:
            error.add_note(
                f"The metrics in `compute_metrics` were updated with preds={_described(logits)} and "
                f"target={_described(labels)}; bring the logits into the form they take in "
                "`preprocess_logits_for_metrics`, and set `ignore_index=-100` where labels are padded."
            )
            raise
        self._num_updates += 1

    def compute(self) -> Mapping[str, Any]:
        """Return the metrics as plain numbers, arrays as nested lists, and forget the count."""
        if self._num_updates == 0:
            return {}
        with _without_synchronisation(self.metrics):
            results = self.metrics.compute()
        self.metrics.reset()
        return {name: _plain(result) for name, result in results.items()}


def is_torch_metrics(compute_metrics: Any) -> bool:
    """Tell whether ``compute_metrics`` is a metric of torchmetrics, a collection, or a dict of them."""
    return isinstance(compute_metrics, Metric | MetricCollection | dict)


@contextmanager
def _without_synchronisation(metrics: MetricCollection) -> Iterator[None]:
    """Let no metric inside ``metrics`` look for other processes."""
    single = [module for module in metrics.modules() if isinstance(module, Metric)]
    saved = [metric.distributed_available_fn for metric in single]
    for metric in single:
        metric.distributed_available_fn = _is_not_distributed
    try:
        yield
    finally:
        for metric, function in zip(single, saved, strict=True):
            metric.distributed_available_fn = function


def _is_not_distributed() -> bool:
    return False


def _plain(result: Any) -> Any:
    """Turn tensors and arrays into what a log and a JSON file can hold."""
    if isinstance(result, torch.Tensor):
        return result.item() if result.numel() == 1 else result.tolist()
    if isinstance(result, np.ndarray | np.generic):
        return result.item() if result.size == 1 else result.tolist()
    if isinstance(result, Mapping):
        return {name: _plain(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [_plain(value) for value in result]
    return result


def _described(data: Any) -> str:
    described = map_tensors(lambda tensor: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}", data)
    return str(described)
