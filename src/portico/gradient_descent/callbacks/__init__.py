"""AllenNLP's callbacks; importing this package registers them."""

from portico.gradient_descent.callbacks.batch import (
    BatchCallback,
    TensoboardBatchMemoryUsage,
    TensorboardBatchMemoryUsage,
)
from portico.gradient_descent.callbacks.built_in import (
    ConsoleLoggerCallback,
    ShouldValidateCallback,
    TensorBoardCallback,
    TrackEpochTrainerCallback,
)
from portico.gradient_descent.callbacks.calling import CallbackList
from portico.gradient_descent.callbacks.epoch import EndCallback, EpochCallback, TrackEpochCallback
from portico.gradient_descent.callbacks.trainer_callback import OnBackwardException, TrainerCallback, runs_backward

__all__ = [
    "BatchCallback",
    "CallbackList",
    "ConsoleLoggerCallback",
    "EndCallback",
    "EpochCallback",
    "OnBackwardException",
    "ShouldValidateCallback",
    "TensoboardBatchMemoryUsage",
    "TensorBoardCallback",
    "TensorboardBatchMemoryUsage",
    "TrackEpochCallback",
    "TrackEpochTrainerCallback",
    "TrainerCallback",
    "runs_backward",
]
