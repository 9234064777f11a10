"""Metrics that see an evaluation batch by batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from transformers.trainer_utils import EvalPrediction


class BatchMetrics(ABC):
    """Takes the batches of one evaluation, one by one, then gives the metrics of them all."""

    @abstractmethod
    def update(self, prediction: EvalPrediction, *, is_last: bool = True) -> None:
        """Take the gathered tensors of a batch; ``is_last`` tells whether it is the final one."""

    @abstractmethod
    def compute(self) -> Mapping[str, Any]:
        """Return the metrics by name, none when there was no batch."""


class FunctionOfBatches(BatchMetrics):
    """A ``compute_metrics`` that keeps its own count, as ``batch_eval_metrics`` asks for.

    Args:
        function: ``f(prediction, compute_result)``; what it returns for the last batch is the result.
    """

    def __init__(self, function: Callable[..., Mapping[str, Any]]) -> None:
        self.function = function
        self._metrics: Mapping[str, Any] = {}

    def update(self, prediction: EvalPrediction, *, is_last: bool = True) -> None:
        """Call the function."""
        self._metrics = self.function(prediction, compute_result=is_last)

    def compute(self) -> Mapping[str, Any]:
        """Return what the function returned last."""
        return self._metrics
