"""The base of all learning-rate schedulers, and the wrappers of torch's."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.registry import Registrable
from portico.gradient_descent.scheduler import Scheduler


class LearningRateScheduler(Scheduler, Registrable):
    """Sets the learning rate of every parameter group.

    Args:
        optimizer: Whose learning rates are set.
        last_epoch: Epochs that are behind, less one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, last_epoch: int = -1) -> None:
        super().__init__(optimizer, "lr", last_epoch)


class TorchScheduler(LearningRateScheduler):
    """A schedule of torch, stepped at the end of each epoch.

    Args:
        lr_scheduler: The schedule.
    """

    def __init__(self, lr_scheduler: LRScheduler) -> None:
        self.lr_scheduler = lr_scheduler
        self.optimizer = lr_scheduler.optimizer

    def get_values(self) -> list[float]:
        """Return the present learning rates."""
        return [float(rate) for rate in self.lr_scheduler.get_last_lr()]

    def step(self, metric: float | None = None) -> None:
        """End an epoch."""
        with _begun_in_mid_training():
            self.lr_scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the schedule."""
        return self.lr_scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        self.lr_scheduler.load_state_dict(state_dict)


class TorchMetricScheduler(TorchScheduler):
    """A schedule of torch that looks at the validation metric."""

    lr_scheduler: Any

    def step(self, metric: float | None = None) -> None:
        """End an epoch.

        Raises:
            ConfigurationError: If there is no validation.
        """
        if metric is None:
            raise ConfigurationError(
                "This learning rate scheduler requires a validation metric to compute the schedule and therefore must "
                "be used with a validation dataset; give `validation_data_loader`, or choose another scheduler."
            )
        with _begun_in_mid_training():
            self.lr_scheduler.step(metric)


@contextmanager
def _begun_in_mid_training() -> Iterator[None]:
    """Silence torch's warning that the optimizer has not been stepped: a combined schedule begins after an epoch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield


def as_learning_rate_scheduler(scheduler: Any) -> Any:
    """Return ``scheduler``, wrapped if it is one of torch's own."""
    if isinstance(scheduler, ReduceLROnPlateau):
        return TorchMetricScheduler(scheduler)
    if isinstance(scheduler, LRScheduler):
        return TorchScheduler(scheduler)
    return scheduler
