import torch

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.learning_rate_schedulers.learning_rate_scheduler import LearningRateScheduler


@LearningRateScheduler.register("polynomial_decay")
class PolynomialDecay(LearningRateScheduler):
    """Rises linearly over the warm-up steps, then falls along a polynomial until the last step.

    Args:
        optimizer: Whose learning rates are set.
        num_epochs: Epochs of the training.
        num_steps_per_epoch: Optimizer steps of an epoch.
        power: Degree of the polynomial.
        warmup_steps: Optimizer steps of the rise.
        end_learning_rate: Learning rate of the last step.
        total_steps: Optimizer steps in all, in the place of epochs times steps.
        last_epoch: Epochs that are behind, less one.

    Raises:
        ConfigurationError: If nothing says how many steps there are.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int | None = None,
        num_steps_per_epoch: int | None = None,
        power: float = 1.0,
        warmup_steps: int = 0,
        end_learning_rate: float = 0.0,
        total_steps: int | None = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, last_epoch)
        if total_steps is None:
            if num_epochs is None or num_steps_per_epoch is None:
                raise ConfigurationError(
                    "'num_steps_per_epoch' is required for this LR scheduler, and the data loader has no length to "
                    "count it by; set it (or `total_steps`) in the configuration of the scheduler, or give a data "
                    "loader with `__len__`."
                )
            total_steps = num_epochs * num_steps_per_epoch
        self.power = power
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.end_learning_rate = end_learning_rate
        self.steps = 0
        self.step_batch(0)

    def step(self, metric: float | None = None) -> None:
        """Do nothing: the schedule counts steps."""

    def step_batch(self, batch_num_total: int | None = None) -> None:
        """Set the learning rates of step ``batch_num_total``, or of the next."""
        self.steps = self.steps + 1 if batch_num_total is None else batch_num_total
        self._assign()

    def get_values(self) -> list[float]:
        """Return the learning rates of the present step."""
        if self.warmup_steps > 0 and self.steps < self.warmup_steps:
            share = self.steps / self.warmup_steps
            return [share * base for base in self.base_values]
        end = self.end_learning_rate
        if self.steps >= self.total_steps:
            return [end for _ in self.base_values]
        left = (self.total_steps - self.steps) / (self.total_steps - self.warmup_steps)
        share = left**self.power
        return [share * (base - end) + end for base in self.base_values]


@LearningRateScheduler.register("linear_with_warmup")
class LinearWithWarmup(PolynomialDecay):
    """Rises linearly over the warm-up steps, then falls linearly to zero.

    Args:
        optimizer: Whose learning rates are set.
        num_epochs: Epochs of the training.
        num_steps_per_epoch: Optimizer steps of an epoch.
        warmup_steps: Optimizer steps of the rise.
        last_epoch: Epochs that are behind, less one.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        num_steps_per_epoch: int | None = None,
        warmup_steps: int = 100,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, num_epochs, num_steps_per_epoch, warmup_steps=warmup_steps, last_epoch=last_epoch)
