"""AllenNLP's trainer: ``GradientDescentTrainer`` with its schedulers, checkpointer, averages and callbacks.

A second facade over the module, the data module, the evaluation and the loops of the Hugging Face one:
``gradient_descent_trainer`` (what users build) -> ``descent`` (what happens in a training) -> ``loop`` (the Hugging
Face facade underneath) -> ``run`` (the order of events) -> Lightning.
"""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.gradient_descent.callbacks import (
        BatchCallback as BatchCallback,
    )
    from portico.gradient_descent.callbacks import (
        EndCallback as EndCallback,
    )
    from portico.gradient_descent.callbacks import (
        EpochCallback as EpochCallback,
    )
    from portico.gradient_descent.callbacks import (
        TensoboardBatchMemoryUsage as TensoboardBatchMemoryUsage,
    )
    from portico.gradient_descent.callbacks import (
        TensorboardBatchMemoryUsage as TensorboardBatchMemoryUsage,
    )
    from portico.gradient_descent.callbacks import (
        TrackEpochCallback as TrackEpochCallback,
    )
    from portico.gradient_descent.callbacks import (
        TrainerCallback as TrainerCallback,
    )
    from portico.gradient_descent.checkpointer import Checkpointer as Checkpointer
    from portico.gradient_descent.construction import from_params as from_params
    from portico.gradient_descent.errors import ConfigurationError as ConfigurationError
    from portico.gradient_descent.gradient_descent_trainer import GradientDescentTrainer as GradientDescentTrainer
    from portico.gradient_descent.lazy import Lazy as Lazy
    from portico.gradient_descent.learning_rate_schedulers import LearningRateScheduler as LearningRateScheduler
    from portico.gradient_descent.metric_tracker import MetricTracker as MetricTracker
    from portico.gradient_descent.momentum_schedulers import MomentumScheduler as MomentumScheduler
    from portico.gradient_descent.moving_average import ExponentialMovingAverage as ExponentialMovingAverage
    from portico.gradient_descent.moving_average import MovingAverage as MovingAverage
    from portico.gradient_descent.no_op import NoOpTrainer as NoOpTrainer
    from portico.gradient_descent.optimizers import Optimizer as Optimizer
    from portico.gradient_descent.registry import Registrable as Registrable
    from portico.gradient_descent.tensorboard import TensorboardWriter as TensorboardWriter
    from portico.gradient_descent.trainers import Trainer as Trainer

_ROOM = "portico.gradient_descent"
_HOMES = {
    "BatchCallback": f"{_ROOM}.callbacks",
    "Checkpointer": f"{_ROOM}.checkpointer",
    "ConfigurationError": f"{_ROOM}.errors",
    "EndCallback": f"{_ROOM}.callbacks",
    "EpochCallback": f"{_ROOM}.callbacks",
    "ExponentialMovingAverage": f"{_ROOM}.moving_average",
    "GradientDescentTrainer": f"{_ROOM}.gradient_descent_trainer",
    "Lazy": f"{_ROOM}.lazy",
    "LearningRateScheduler": f"{_ROOM}.learning_rate_schedulers",
    "MetricTracker": f"{_ROOM}.metric_tracker",
    "MomentumScheduler": f"{_ROOM}.momentum_schedulers",
    "MovingAverage": f"{_ROOM}.moving_average",
    "NoOpTrainer": f"{_ROOM}.no_op",
    "Optimizer": f"{_ROOM}.optimizers",
    "Registrable": f"{_ROOM}.registry",
    "TensoboardBatchMemoryUsage": f"{_ROOM}.callbacks",
    "TensorboardBatchMemoryUsage": f"{_ROOM}.callbacks",
    "TensorboardWriter": f"{_ROOM}.tensorboard",
    "TrackEpochCallback": f"{_ROOM}.callbacks",
    "Trainer": f"{_ROOM}.trainers",
    "TrainerCallback": f"{_ROOM}.callbacks",
    "from_params": f"{_ROOM}.construction",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
