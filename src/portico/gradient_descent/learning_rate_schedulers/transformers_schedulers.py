"""Schedules that transformers has. They step at the end of each epoch, so their "steps" are epochs."""

import torch
from transformers import (
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
)

from portico.gradient_descent.learning_rate_schedulers.learning_rate_scheduler import (
    LearningRateScheduler,
    TorchScheduler,
)


@LearningRateScheduler.register("constant")
class ConstantLearningRateScheduler(TorchScheduler):
    """Leaves the learning rate as it is."""

    def __init__(self, optimizer: torch.optim.Optimizer, last_epoch: int = -1) -> None:
        super().__init__(get_constant_schedule(optimizer, last_epoch))


@LearningRateScheduler.register("constant_with_warmup")
class ConstantWithWarmupLearningRateScheduler(TorchScheduler):
    """Raises the learning rate over ``num_warmup_steps`` epochs, then keeps it."""

    def __init__(self, optimizer: torch.optim.Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> None:
        super().__init__(get_constant_schedule_with_warmup(optimizer, num_warmup_steps, last_epoch))


@LearningRateScheduler.register("cosine_with_warmup")
class CosineWithWarmupLearningRateScheduler(TorchScheduler):
    """Raises the learning rate over ``num_warmup_steps`` epochs, then lets it fall along a cosine."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_warmup_steps: int,
        num_training_steps: int,
        num_cycles: float = 0.5,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, num_cycles, last_epoch)
        )


@LearningRateScheduler.register("cosine_hard_restarts_with_warmup")
class CosineHardRestartsWithWarmupLearningRateScheduler(TorchScheduler):
    """Raises the learning rate over ``num_warmup_steps`` epochs, then lets it fall ``num_cycles`` times."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_warmup_steps: int,
        num_training_steps: int,
        num_cycles: int = 1,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            get_cosine_with_hard_restarts_schedule_with_warmup(
                optimizer, num_warmup_steps, num_training_steps, num_cycles, last_epoch
            )
        )
