import torch

from portico.gradient_descent.registry import Registrable
from portico.gradient_descent.scheduler import Scheduler


class MomentumScheduler(Scheduler, Registrable):
    """Sets the momentum of every parameter group.

    Args:
        optimizer: Whose momentum is set.
        last_epoch: Epochs that are behind, less one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, last_epoch: int = -1) -> None:
        super().__init__(optimizer, "momentum", last_epoch)
