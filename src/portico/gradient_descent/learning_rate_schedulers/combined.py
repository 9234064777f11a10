from typing import Any

import torch

from portico.gradient_descent.construction import as_lazy
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.lazy import Lazy
from portico.gradient_descent.learning_rate_schedulers.learning_rate_scheduler import LearningRateScheduler


@LearningRateScheduler.register("combined")
class CombinedLearningRateScheduler(LearningRateScheduler):
    """Runs several schedules one after the other; after the last, the learning rate stays.

    Args:
        optimizer: Whose learning rates are set.
        schedulers: Pairs of a number of epochs and the schedule that runs for so long. Each begins from the learning
            rate that the one before it left.
        num_steps_per_epoch: Optimizer steps of an epoch.
        last_epoch: Epochs that are behind, less one.

    Raises:
        ConfigurationError: If there are no schedules.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: list[tuple[int, Lazy[LearningRateScheduler]]],
        num_steps_per_epoch: int | None = None,
        last_epoch: int = -1,
    ) -> None:
        if not schedulers:
            raise ConfigurationError("`schedulers` of the schedule 'combined' is empty; give at least one pair.")
        super().__init__(optimizer, last_epoch)
        self.num_steps_per_epoch = num_steps_per_epoch
        self.schedulers = [(num_epochs, as_lazy(LearningRateScheduler, lazy)) for num_epochs, lazy in schedulers]
        self.current_scheduler: LearningRateScheduler | None = None
        self._current_index: int | None = None
        self._choose()

    def step(self, metric: float | None = None) -> None:
        """End an epoch: of the schedule that ran in it, or by going over to the next."""
        self.last_epoch += 1
        self.metric = metric
        self._choose()
        if self.current_scheduler is not None:
            self.current_scheduler.step(metric)

    def step_batch(self, batch_num_total: int | None = None) -> None:
        """Hand the step to the present schedule."""
        if self.current_scheduler is not None:
            self.current_scheduler.step_batch(batch_num_total)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the present schedule, and which it is."""
        current = self.current_scheduler
        return {
            "last_epoch": self.last_epoch,
            "num_steps_per_epoch": self.num_steps_per_epoch,
            "current_scheduler": None if current is None else current.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        self.last_epoch = state_dict["last_epoch"]
        self.num_steps_per_epoch = state_dict["num_steps_per_epoch"]
        rates = [(group["lr"], group["initial_lr"]) for group in self.optimizer.param_groups]
        self._choose()
        if self.current_scheduler is not None:
            self.current_scheduler.load_state_dict(state_dict["current_scheduler"])
        # A schedule that was made on the way set the rates of its own beginning.
        for group, (rate, initial) in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"], group["initial_lr"] = rate, initial

    def _choose(self) -> None:
        """Make the schedule of the coming epoch, unless it is the present one."""
        index = self._index_of(self.last_epoch + 1)
        if index == self._current_index:
            return
        self._current_index = index
        self.current_scheduler = None
        if index is None:
            return
        for group in self.optimizer.param_groups:
            group[self._initial_param_group_field] = group[self.param_group_field]
        num_epochs, lazy = self.schedulers[index]
        assert lazy is not None
        self.current_scheduler = lazy.construct(
            optimizer=self.optimizer, num_epochs=num_epochs, num_steps_per_epoch=self.num_steps_per_epoch
        )

    def _index_of(self, epoch: int) -> int | None:
        first = 0
        for index, (num_epochs, _) in enumerate(self.schedulers):
            if first <= epoch < first + num_epochs:
                return index
            first += num_epochs
        return None
