"""AllenNLP's callbacks; importing this package registers them."""

from portico.gradient_descent.callbacks.batch import (
    BatchCallback,
    TensoboardBatchMemoryUsage,
    TensorboardBatchMemoryUsage,
)
from portico.gradient_descent.callbacks.calling import CallbackList
from portico.gradient_descent.callbacks.epoch import EndCallback, EpochCallback, TrackEpochCallback

__all__ = [
    "BatchCallback",
    "CallbackList",
    "EndCallback",
    "EpochCallback",
    "TensoboardBatchMemoryUsage",
    "TensorboardBatchMemoryUsage",
    "TrackEpochCallback",
]
