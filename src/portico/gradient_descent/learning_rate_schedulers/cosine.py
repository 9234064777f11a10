import logging

import numpy as np
import torch

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.learning_rate_schedulers.learning_rate_scheduler import LearningRateScheduler

logger = logging.getLogger(__name__)


@LearningRateScheduler.register("cosine")
class CosineWithRestarts(LearningRateScheduler):
    """Falls along a cosine over a cycle of epochs, then starts again.

    Args:
        optimizer: Whose learning rates are set.
        t_initial: Epochs in the first cycle.
        t_mul: Factor from the length of a cycle to that of the next.
        eta_min: Smallest learning rate.
        eta_mul: Factor from the first learning rate of a cycle to that of the next.
        last_epoch: Epochs that are behind, less one.

    Raises:
        ConfigurationError: If ``t_initial`` is not positive or ``eta_min`` negative.

    Source: SGDR, arXiv:1608.03983.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        t_initial: int,
        t_mul: float = 1.0,
        eta_min: float = 0.0,
        eta_mul: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        if t_initial <= 0 or eta_min < 0:
            raise ConfigurationError(
                f"The cosine schedule got `t_initial={t_initial}` and `eta_min={eta_min}`; set the first to 1 epoch "
                "or more, the second to 0 or more."
            )
        if t_initial == 1 and t_mul == 1 and eta_mul == 1:
            logger.warning("A cosine schedule with t_initial = t_mul = eta_mul = 1 does not change the learning rate.")
        self.t_initial = t_initial
        self.t_mul = t_mul
        self.eta_min = eta_min
        self.eta_mul = eta_mul
        self._last_restart = 0
        self._cycle_len = t_initial
        self._n_restarts = 0
        super().__init__(optimizer, last_epoch)

    def get_values(self) -> list[float]:
        """Return the learning rates of the coming epoch; each call moves on to the next."""
        if self.last_epoch == -1:
            return self.base_values
        step = self.last_epoch + 1
        position = step - self._last_restart
        if position % self._cycle_len == 0:
            self._n_restarts += 1
            self._last_restart = step
            position = 0
        self._cycle_len = int(self.t_initial * self.t_mul**self._n_restarts)
        # numpy's cosine, as AllenNLP's; that of the standard library may differ in the last bit.
        falling = float(np.cos(np.pi * (position % self._cycle_len) / self._cycle_len)) + 1
        return [self._between(base * self.eta_mul**self._n_restarts, falling) for base in self.base_values]

    def _between(self, highest: float, falling: float) -> float:
        return self.eta_min + ((highest - self.eta_min) / 2) * falling
