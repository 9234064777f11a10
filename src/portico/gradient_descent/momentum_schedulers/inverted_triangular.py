import torch

from portico.gradient_descent.momentum_schedulers.momentum_scheduler import MomentumScheduler


@MomentumScheduler.register("inverted_triangular")
class InvertedTriangular(MomentumScheduler):
    """Falls linearly over ``cool_down`` epochs, rises again over ``warm_up`` epochs, then stays.

    Args:
        optimizer: Whose momentum is set.
        cool_down: Epochs of the fall.
        warm_up: Epochs of the rise.
        ratio: Highest over lowest momentum.
        last_epoch: Epochs that are behind, less one.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, cool_down: int, warm_up: int, ratio: float = 10, last_epoch: int = -1
    ) -> None:
        self.cool_down = cool_down
        self.warm_up = warm_up
        self.ratio = ratio
        super().__init__(optimizer, last_epoch)

    def get_values(self) -> list[float]:
        """Return the momentum of the coming epoch."""
        step = self.last_epoch + 1
        if step <= self.cool_down:
            return [base - (base - base / self.ratio) * (step / self.cool_down) for base in self.base_values]
        if step <= self.cool_down + self.warm_up:
            risen = step - self.cool_down
            return [
                (base / self.ratio) + (base - base / self.ratio) * risen / self.warm_up for base in self.base_values
            ]
        return self.base_values
