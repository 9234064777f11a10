"""Schedules that torch has, stepped at the end of each epoch."""

import logging
from typing import Literal

import torch
from torch.optim.lr_scheduler import ExponentialLR, MultiStepLR, ReduceLROnPlateau, StepLR

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.learning_rate_schedulers.learning_rate_scheduler import (
    LearningRateScheduler,
    TorchMetricScheduler,
    TorchScheduler,
)

logger = logging.getLogger(__name__)


@LearningRateScheduler.register("step")
class StepLearningRateScheduler(TorchScheduler):
    """Multiplies the learning rate by ``gamma`` every ``step_size`` epochs."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        if step_size < 1:
            raise ConfigurationError(f"The schedule 'step' got `step_size={step_size}`; set it to 1 epoch or more.")
        super().__init__(StepLR(optimizer, step_size, gamma, last_epoch))


@LearningRateScheduler.register("multi_step")
class MultiStepLearningRateScheduler(TorchScheduler):
    """Multiplies the learning rate by ``gamma`` after each epoch of ``milestones``."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, milestones: list[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        super().__init__(MultiStepLR(optimizer, milestones, gamma, last_epoch))


@LearningRateScheduler.register("exponential")
class ExponentialLearningRateScheduler(TorchScheduler):
    """Multiplies the learning rate by ``gamma`` after each epoch."""

    def __init__(self, optimizer: torch.optim.Optimizer, gamma: float = 0.1, last_epoch: int = -1) -> None:
        super().__init__(ExponentialLR(optimizer, gamma, last_epoch))


@LearningRateScheduler.register("reduce_on_plateau")
class ReduceOnPlateauLearningRateScheduler(TorchMetricScheduler):
    """Lowers the learning rate when the validation metric no longer improves.

    The metric it sees is ``validation_metric`` without its sign, so that ``mode`` says which direction is better; of
    several it sees the signed sum, in which more is better.

    Args:
        optimizer: Whose learning rates are set.
        mode: ``"min"`` if a smaller metric is better, else ``"max"``.
        factor: Factor of a reduction.
        patience: Epochs without improvement before it.
        verbose: Log each reduction.
        threshold_mode: ``"rel"`` or ``"abs"``.
        threshold: Improvement that counts.
        cooldown: Epochs to wait after a reduction.
        min_lr: Smallest learning rate, one for all groups or one each.
        eps: Smallest change that is made.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        verbose: bool = False,
        threshold_mode: Literal["rel", "abs"] = "rel",
        threshold: float = 1e-4,
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(
            ReduceLROnPlateau(optimizer, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps)
        )
        self._verbose = verbose

    def step(self, metric: float | None = None) -> None:
        """End an epoch."""
        before = self.get_values()
        super().step(metric)
        if self._verbose and self.get_values() != before:
            logger.info("The learning rates were reduced to %s.", self.get_values())
