"""A value in an optimizer's parameter groups that changes with the training."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, MultiStepLR, ReduceLROnPlateau, StepLR
from transformers.optimization import (
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
)

from portico.gradient_descent.construction import Lazy, Registrable, as_lazy
from portico.gradient_descent.errors import ConfigurationError


class Scheduler:
    """Sets one field of every parameter group.

    :meth:`step` is called after each epoch, :meth:`step_batch` before each optimizer step. A subclass says what the
    values are in :meth:`get_values`.

    Args:
        optimizer: Whose groups are changed.
        param_group_field: Field that is set, such as ``"lr"``.
        last_epoch: Epochs that are behind, less one.

    Attributes:
        base_values: What the field was at the start, for each group.

    Raises:
        ConfigurationError: If a group does not have the field.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, param_group_field: str, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        self._initial_param_group_field = f"initial_{param_group_field}"
        for index, group in enumerate(optimizer.param_groups):
            if last_epoch == -1 and param_group_field in group:
                group.setdefault(self._initial_param_group_field, group[param_group_field])
            if self._initial_param_group_field not in group:
                raise ConfigurationError(
                    f"{type(self).__name__} changes `{param_group_field}`, which parameter group {index} of "
                    f"{type(optimizer).__name__} does not have; choose an optimizer that has it, or another scheduler."
                )
        self.base_values = [group[self._initial_param_group_field] for group in optimizer.param_groups]
        self.last_epoch = last_epoch

    def get_values(self) -> list[float]:
        """Return the value for each group; by default it stays what it is."""
        return [group[self.param_group_field] for group in self.optimizer.param_groups]

    def step(self, metric: float | None = None) -> None:
        """Take the end of an epoch into account.

        Args:
            metric: Validation metric of the epoch, if there is one.
        """
        self.last_epoch += 1
        self.metric = metric
        self._assign()

    def step_batch(self, batch_num_total: int | None = None) -> None:
        """Take an optimizer step into account; by default nothing changes between epochs.

        Args:
            batch_num_total: Number of the step, from 1.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        self.__dict__.update(state_dict)

    def _assign(self) -> None:
        for group, value in zip(self.optimizer.param_groups, self.get_values(), strict=True):
            group[self.param_group_field] = value.item() if isinstance(value, np.generic) else value


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


class MomentumScheduler(Scheduler, Registrable):
    """Sets the momentum of every parameter group.

    Args:
        optimizer: Whose momentum is set.
        last_epoch: Epochs that are behind, less one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, last_epoch: int = -1) -> None:
        super().__init__(optimizer, "momentum", last_epoch)


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
