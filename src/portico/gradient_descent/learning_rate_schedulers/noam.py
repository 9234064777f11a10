import torch

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.learning_rate_schedulers.learning_rate_scheduler import LearningRateScheduler


@LearningRateScheduler.register("noam")
class NoamLR(LearningRateScheduler):
    """Rises over the warm-up steps, then falls with the inverse square root of the step.

    The learning rate that the optimizer was made with does not matter.

    Args:
        optimizer: Whose learning rates are set.
        model_size: Hidden size of the model.
        warmup_steps: Optimizer steps of the rise.
        factor: Scale of all learning rates.
        last_epoch: Steps that are behind; AllenNLP's name.

    Raises:
        ConfigurationError: If a number is not positive.

    Source: Attention is all you need, arXiv:1706.03762, section 5.3.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model_size: int,
        warmup_steps: int,
        factor: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        if model_size < 1 or warmup_steps < 1:
            raise ConfigurationError(
                f"The schedule 'noam' got `model_size={model_size}` and `warmup_steps={warmup_steps}`; set both to an "
                "int >= 1."
            )
        self.warmup_steps = warmup_steps
        self.factor = factor
        self.model_size = model_size
        super().__init__(optimizer, last_epoch)

    def step(self, metric: float | None = None) -> None:
        """Do nothing: the schedule counts steps."""

    def step_batch(self, batch_num_total: int | None = None) -> None:
        """Set the learning rates of step ``batch_num_total``, or of the next."""
        self.last_epoch = self.last_epoch + 1 if batch_num_total is None else batch_num_total
        self._assign()

    def get_values(self) -> list[float]:
        """Return the learning rates of the present step."""
        step = max(self.last_epoch, 1)
        rising_or_falling = min(step ** (-0.5), step * self.warmup_steps ** (-1.5))
        rate = self.factor * (self.model_size ** (-0.5) * rising_or_falling)
        return [rate for _ in self.base_values]
