"""AllenNLP's trainer: ``GradientDescentTrainer`` with its schedulers, checkpointer, moving average and callbacks.

Read ``trainer`` (what users build), then ``run`` (the order of events, over Hugging Face's and Lightning's loops).
"""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.gradient_descent.callbacks import BatchCallback as BatchCallback
    from portico.gradient_descent.callbacks import EndCallback as EndCallback
    from portico.gradient_descent.callbacks import EpochCallback as EpochCallback
    from portico.gradient_descent.callbacks import TensoboardBatchMemoryUsage as TensoboardBatchMemoryUsage
    from portico.gradient_descent.callbacks import TensorboardBatchMemoryUsage as TensorboardBatchMemoryUsage
    from portico.gradient_descent.callbacks import TrackEpochCallback as TrackEpochCallback
    from portico.gradient_descent.callbacks import TrainerCallback as TrainerCallback
    from portico.gradient_descent.checkpointer import Checkpointer as Checkpointer
    from portico.gradient_descent.construction import Lazy as Lazy
    from portico.gradient_descent.construction import Registrable as Registrable
    from portico.gradient_descent.construction import from_params as from_params
    from portico.gradient_descent.errors import ConfigurationError as ConfigurationError
    from portico.gradient_descent.metrics import MetricTracker as MetricTracker
    from portico.gradient_descent.moving_average import ExponentialMovingAverage as ExponentialMovingAverage
    from portico.gradient_descent.moving_average import MovingAverage as MovingAverage
    from portico.gradient_descent.optimizers import Optimizer as Optimizer
    from portico.gradient_descent.schedulers import LearningRateScheduler as LearningRateScheduler
    from portico.gradient_descent.schedulers import MomentumScheduler as MomentumScheduler
    from portico.gradient_descent.tensorboard import TensorboardWriter as TensorboardWriter
    from portico.gradient_descent.trainer import GradientDescentTrainer as GradientDescentTrainer
    from portico.gradient_descent.trainer import NoOpTrainer as NoOpTrainer
    from portico.gradient_descent.trainer import Trainer as Trainer

_NAMES = {
    "callbacks": "BatchCallback EndCallback EpochCallback TensoboardBatchMemoryUsage TensorboardBatchMemoryUsage "
    "TrackEpochCallback TrainerCallback",
    "checkpointer": "Checkpointer",
    "errors": "ConfigurationError",
    "construction": "Lazy Registrable from_params",
    "metrics": "MetricTracker",
    "moving_average": "ExponentialMovingAverage MovingAverage",
    "optimizers": "Optimizer",
    "schedulers": "LearningRateScheduler MomentumScheduler",
    "tensorboard": "TensorboardWriter",
    "trainer": "GradientDescentTrainer NoOpTrainer Trainer",
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
