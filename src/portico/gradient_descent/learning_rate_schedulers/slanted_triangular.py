import logging
from typing import Any

import torch

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.learning_rate_schedulers.learning_rate_scheduler import LearningRateScheduler

logger = logging.getLogger(__name__)


@LearningRateScheduler.register("slanted_triangular")
class SlantedTriangular(LearningRateScheduler):
    """Rises linearly over a part of the steps, then falls linearly over the rest.

    With gradual unfreezing only the last layer trains in the first epoch, the last two in the second, and so on; the
    triangle spans one epoch until all train, then the rest of the training. The layers are the parameter groups, the
    last of which must be the empty default group.

    Args:
        optimizer: Whose learning rates are set.
        num_epochs: Epochs of the training.
        num_steps_per_epoch: Optimizer steps of an epoch; what an epoch really had replaces it.
        cut_frac: Part of the steps in which the learning rate rises.
        ratio: Highest over lowest learning rate.
        last_epoch: Epochs that are behind, less one.
        gradual_unfreezing: Unfreeze one more group in each epoch.
        discriminative_fine_tuning: Give each group a smaller learning rate than the group after it.
        decay_factor: Factor between the learning rates of neighbouring groups.

    Raises:
        ConfigurationError: If a number is out of its range, or the optimizer does not have the groups.

    Source: ULMFiT, arXiv:1801.06146.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        num_steps_per_epoch: int | None = None,
        cut_frac: float = 0.1,
        ratio: float = 32,
        last_epoch: int = -1,
        gradual_unfreezing: bool = False,
        discriminative_fine_tuning: bool = False,
        decay_factor: float = 0.38,
    ) -> None:
        if not (0 <= cut_frac < 1 and ratio > 0):
            raise ConfigurationError(
                f"The schedule 'slanted_triangular' got `cut_frac={cut_frac}` and `ratio={ratio}`; set the first to 0 "
                "or more and below 1, the second above 0."
            )
        self.num_epochs = num_epochs
        self.num_steps_per_epoch = num_steps_per_epoch
        self.cut_frac = cut_frac
        self.ratio = ratio
        self.gradual_unfreezing = gradual_unfreezing
        self.freezing_current = gradual_unfreezing
        self.num_layers_to_unfreeze = 0
        # Steps that were behind at the end of each epoch, the start included.
        self.batch_num_total_epoch_end: list[int] = []
        _check_groups(optimizer, gradual_unfreezing, discriminative_fine_tuning)
        super().__init__(optimizer, last_epoch)
        self.last_batch_num_total = 0
        self.step()
        if discriminative_fine_tuning:
            self._discriminate(decay_factor)
        self.step_batch(0)

    def step(self, metric: float | None = None) -> None:
        """End an epoch (or begin the first one), and unfreeze a group if asked to."""
        self.last_epoch += 1
        self.batch_num_total_epoch_end.append(self.last_batch_num_total)
        if self.gradual_unfreezing:
            self.num_layers_to_unfreeze = self.last_epoch + 1
            self.freezing_current = self.num_layers_to_unfreeze < len(self.optimizer.param_groups) - 1
            self._freeze()

    def step_batch(self, batch_num_total: int | None = None) -> None:
        """Set the learning rates of step ``batch_num_total``, or of the next."""
        self.last_batch_num_total = self.last_batch_num_total + 1 if batch_num_total is None else batch_num_total
        self._assign()

    def get_values(self) -> list[float]:
        """Return the learning rates of the present step."""
        step, num_steps = self._position()
        cut = int(num_steps * self.cut_frac)
        share = step / cut if step < cut else 1 - (step - cut) / (num_steps - cut)
        return [base * (1 + share * (self.ratio - 1)) / self.ratio for base in self.base_values]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; the groups that were unfrozen are so again."""
        super().load_state_dict(state_dict)
        if self.gradual_unfreezing:
            self._freeze()

    def _position(self) -> tuple[int, int]:
        """Return the present step of the present triangle, and how many it has."""
        ends = self.batch_num_total_epoch_end
        if len(ends) > 1:
            steps_per_epoch = int(ends[-1] / (len(ends) - 1))
        else:
            steps_per_epoch = max(self.num_steps_per_epoch or 1, self.last_batch_num_total)
        if self.freezing_current:
            return min(self.last_batch_num_total - ends[-1], steps_per_epoch), steps_per_epoch
        frozen_steps = ends[len(self.optimizer.param_groups) - 2] if self.gradual_unfreezing else 0
        num_steps = self.num_epochs * steps_per_epoch - frozen_steps
        return min(self.last_batch_num_total - frozen_steps, num_steps), num_steps

    def _freeze(self) -> None:
        if self.freezing_current:
            logger.info("Gradual unfreezing. Training only the top %d layers.", self.num_layers_to_unfreeze)
        else:
            logger.info("Gradual unfreezing finished. Training all layers.")
        # Counted from the end, where the empty default group is number 0.
        for index, group in enumerate(reversed(self.optimizer.param_groups)):
            for parameter in group["params"]:
                parameter.requires_grad = index <= self.num_layers_to_unfreeze

    def _discriminate(self, decay_factor: float) -> None:
        exponent = 0
        for index in reversed(range(len(self.base_values))):
            group = self.optimizer.param_groups[index]
            if group["params"]:
                group["lr"] = self.base_values[index] = self.base_values[index] * decay_factor**exponent
                exponent += 1


def _check_groups(optimizer: torch.optim.Optimizer, unfreezing: bool, discriminative: bool) -> None:
    groups = optimizer.param_groups
    if unfreezing and groups[-1]["params"]:
        raise ConfigurationError(
            "`gradual_unfreezing` counts parameter groups from the end, so the default group must be empty, but it "
            f"holds {len(groups[-1]['params'])} parameters; let `parameter_groups` of the optimizer name every layer."
        )
    if (unfreezing or discriminative) and len(groups) < 3:
        raise ConfigurationError(
            f"The optimizer has {len(groups)} parameter groups, but there should be at least 3 (2 and the default "
            "one) for gradual unfreezing or discriminative fine-tuning; set `parameter_groups` of the optimizer."
        )
