"""AllenNLP's learning-rate and momentum schedulers.

Schedulers of torch and transformers are wrapped, and step after each epoch. The others are AllenNLP's own rules: they
set the rates of a step *before* the optimizer makes it, so that the first step of a warm-up has a rate above 0.
"""

import itertools
import logging
import warnings
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, MultiStepLR, ReduceLROnPlateau, StepLR
from transformers import (
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
)
from typing_extensions import override

from portico.gradient_descent.construction import ConfigurationError, Lazy, Registrable, make_lazy

logger = logging.getLogger(__name__)


def refuse_without_metric() -> NoReturn:
    """Raise the error of a scheduler that needs a metric, in a training without validation."""
    raise ConfigurationError(
        "This learning rate scheduler requires a validation metric to compute the schedule and therefore must be used "
        "with a validation dataset; pass `validation_data_loader`, or choose another scheduler."
    )


class Scheduler:
    """Sets one field of every parameter group, such as ``"lr"``; a subclass returns its values in :meth:`get_values`.

    ``last_epoch`` is the number of completed epochs less one, ``base_values`` the initial value in each group.

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
        """Return the value for each group; by default the current one."""
        return [group[self.param_group_field] for group in self.optimizer.param_groups]

    def step(self, metric: float | None = None) -> None:
        """Set the values after an epoch with the validation metric ``metric``, if there is one."""
        self.last_epoch += 1
        self.metric = metric
        self._assign()

    @property
    def needs_metric(self) -> bool:
        """Whether :meth:`step` needs a metric."""
        return False

    def end_epoch(self, metric: float | None) -> None:
        """Step after an epoch; a scheduler that needs a metric waits in an epoch that was not validated."""
        if metric is not None or not self.needs_metric:
            self.step(metric)

    def step_batch(self, batch_num_total: int | None = None) -> None:
        """Set the values before optimizer step ``batch_num_total``, from 1; by default only epochs change them."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update(state_dict)

    def _assign(self) -> None:
        for group, value in zip(self.optimizer.param_groups, self.get_values(), strict=True):
            group[self.param_group_field] = value.item() if isinstance(value, np.generic) else value


class LearningRateScheduler(Scheduler, Registrable):
    """Sets the learning rate of every parameter group; arguments out of range raise ``ConfigurationError``."""

    _accepted = (LRScheduler,)

    def __init__(self, optimizer: torch.optim.Optimizer, last_epoch: int = -1) -> None:
        _require_rates(optimizer)
        super().__init__(optimizer, "lr", last_epoch)


class MomentumScheduler(Scheduler, Registrable):
    """Sets the momentum of every parameter group."""

    def __init__(self, optimizer: torch.optim.Optimizer, last_epoch: int = -1) -> None:
        super().__init__(optimizer, "momentum", last_epoch)


def _require_rates(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return ``optimizer`` unless it computes its own learning rates, which raises ``ConfigurationError``."""
    if any("lr" in group and group["lr"] is None for group in optimizer.param_groups):
        raise ConfigurationError(
            f"`lr=None` of {type(optimizer).__name__} means that it computes its own learning rates, which no "
            "scheduler can change; set `lr` and, for Adafactor, `relative_step=False`, or leave the scheduler out."
        )
    return optimizer


# ---- Schedulers of torch and transformers ----


class TorchScheduler(LearningRateScheduler):
    """A scheduler of torch, stepped after each epoch."""

    def __init__(self, lr_scheduler: LRScheduler) -> None:
        # Not `super().__init__`: torch has set `initial_lr` and made the first step.
        _require_rates(lr_scheduler.optimizer)
        self.lr_scheduler = lr_scheduler
        self.optimizer = lr_scheduler.optimizer

    def get_values(self) -> list[float]:
        return [float(rate) for rate in self.lr_scheduler.get_last_lr()]

    @property
    @override
    def needs_metric(self) -> bool:
        return isinstance(self.lr_scheduler, ReduceLROnPlateau)

    def step(self, metric: float | None = None) -> None:
        with warnings.catch_warnings():
            # torch misses the optimizer step that it expects first where `combined` makes a scheduler after an epoch.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            if not isinstance(self.lr_scheduler, ReduceLROnPlateau):
                self.lr_scheduler.step()
            elif metric is not None:
                self.lr_scheduler.step(metric)
            else:
                refuse_without_metric()

    def state_dict(self) -> dict[str, Any]:
        return self.lr_scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.lr_scheduler.load_state_dict(state_dict)


def wrap_scheduler(scheduler: object) -> Any:
    """Return ``scheduler``, wrapped if it is one of torch's."""
    return TorchScheduler(scheduler) if isinstance(scheduler, LRScheduler) else scheduler


# The arguments are written out because torch's annotations cannot be resolved at run time.


@LearningRateScheduler.register("step")
class StepLearningRateScheduler(TorchScheduler):
    """Multiplies the learning rate by ``gamma`` after each ``step_size`` epochs."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        if step_size < 1:
            raise ConfigurationError(f"The scheduler 'step' got `step_size={step_size}`; set it to 1 epoch or more.")
        super().__init__(StepLR(optimizer, step_size, gamma, last_epoch))


@LearningRateScheduler.register("multi_step")
class MultiStepLearningRateScheduler(TorchScheduler):
    """Multiplies the learning rate by ``gamma`` after each of the epochs ``milestones``."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, milestones: list[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        super().__init__(MultiStepLR(optimizer, milestones, gamma, last_epoch))


@LearningRateScheduler.register("exponential")
class ExponentialLearningRateScheduler(TorchScheduler):
    """Multiplies the learning rate by ``gamma`` after each epoch."""

    def __init__(self, optimizer: torch.optim.Optimizer, gamma: float = 0.1, last_epoch: int = -1) -> None:
        super().__init__(ExponentialLR(optimizer, gamma, last_epoch))


# As in AllenNLP the schedules of transformers step after each epoch, so their "steps" (`num_warmup_steps`, ...) are
# epochs.


@LearningRateScheduler.register("constant")
class ConstantLearningRateScheduler(TorchScheduler):
    """Keeps the learning rate."""

    def __init__(self, optimizer: torch.optim.Optimizer, last_epoch: int = -1) -> None:
        super().__init__(get_constant_schedule(_require_rates(optimizer), last_epoch))


@LearningRateScheduler.register("constant_with_warmup")
class ConstantWithWarmupLearningRateScheduler(TorchScheduler):
    """Rises linearly over the epochs ``num_warmup_steps``, then keeps the learning rate."""

    def __init__(self, optimizer: torch.optim.Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> None:
        super().__init__(get_constant_schedule_with_warmup(_require_rates(optimizer), num_warmup_steps, last_epoch))


@LearningRateScheduler.register("cosine_with_warmup")
class CosineWithWarmupLearningRateScheduler(TorchScheduler):
    """Rises linearly over the epochs ``num_warmup_steps``, then falls along ``num_cycles`` of a cosine."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_warmup_steps: int,
        num_training_steps: int,
        num_cycles: float = 0.5,
        last_epoch: int = -1,
    ) -> None:
        steps = (num_warmup_steps, num_training_steps)
        super().__init__(get_cosine_schedule_with_warmup(_require_rates(optimizer), *steps, num_cycles, last_epoch))


@LearningRateScheduler.register("cosine_hard_restarts_with_warmup")
class CosineHardRestartsWithWarmupLearningRateScheduler(TorchScheduler):
    """Rises linearly over the epochs ``num_warmup_steps``, then falls along a cosine ``num_cycles`` times."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_warmup_steps: int,
        num_training_steps: int,
        num_cycles: int = 1,
        last_epoch: int = -1,
    ) -> None:
        steps = (num_warmup_steps, num_training_steps)
        make_schedule = get_cosine_with_hard_restarts_schedule_with_warmup
        super().__init__(make_schedule(_require_rates(optimizer), *steps, num_cycles, last_epoch))


@LearningRateScheduler.register("reduce_on_plateau")
class ReduceOnPlateauLearningRateScheduler(TorchScheduler):
    """Lowers the learning rate when the validation metric stops improving.

    It sees ``validation_metric`` without its sign, so ``mode`` must state the direction; of several metrics it sees
    the signed sum, of which higher is better. ``verbose`` logs each reduction, the other arguments are torch's.
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
        before = self.get_values()
        super().step(metric)
        if self._verbose and self.get_values() != before:
            logger.info("The learning rates were reduced to %s.", self.get_values())


# ---- AllenNLP's own rules; `optimizer` and `last_epoch` are as of `LearningRateScheduler` ----


@LearningRateScheduler.register("noam")
@dataclass(eq=False, repr=False)
class NoamLR(LearningRateScheduler):
    """Rises over the warm-up steps, then falls with the inverse square root of the step.

    The initial learning rate of the optimizer is not used; ``last_epoch`` counts steps, as in AllenNLP.
    ``model_size`` is the hidden size of the model, ``factor`` scales all learning rates.

    Source: Attention is all you need, arXiv:1706.03762, section 5.3.
    """

    optimizer: torch.optim.Optimizer
    model_size: int
    warmup_steps: int
    factor: float = 1.0
    last_epoch: int = -1

    def __post_init__(self) -> None:
        if self.model_size < 1 or self.warmup_steps < 1:
            raise ConfigurationError(
                f"The scheduler 'noam' got `model_size={self.model_size}` and `warmup_steps={self.warmup_steps}`; set "
                "both to an int >= 1."
            )
        super().__init__(self.optimizer, self.last_epoch)

    @override
    def step(self, metric: float | None = None) -> None:
        pass

    @override
    def step_batch(self, batch_num_total: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if batch_num_total is None else batch_num_total
        self._assign()

    @override
    def get_values(self) -> list[float]:
        step = max(self.last_epoch, 1)
        rising_or_falling = min(step ** (-0.5), step * self.warmup_steps ** (-1.5))
        rate = self.factor * (self.model_size ** (-0.5) * rising_or_falling)
        return [rate for _ in self.base_values]


@LearningRateScheduler.register("polynomial_decay")
@dataclass(eq=False, repr=False)
class PolynomialDecay(LearningRateScheduler):
    """Rises linearly over the warm-up steps, then falls along a polynomial of degree ``power`` until the last step.

    All steps are optimizer steps. ``total_steps``, AllenNLP 1's argument, overrides epochs times steps per epoch.
    """

    optimizer: torch.optim.Optimizer
    num_epochs: int | None = None
    num_steps_per_epoch: int | None = None
    power: float = 1.0
    warmup_steps: int = 0
    end_learning_rate: float = 0.0
    total_steps: int | None = None
    last_epoch: int = -1

    def __post_init__(self) -> None:
        super().__init__(self.optimizer, self.last_epoch)
        if self.warmup_steps < 0:
            raise ConfigurationError(
                f"`warmup_steps={self.warmup_steps}` is negative; set it to 0 optimizer steps or more."
            )
        if self.total_steps is None:
            if self.num_epochs is None or self.num_steps_per_epoch is None:
                raise ConfigurationError(
                    "'num_steps_per_epoch' is required for this LR scheduler, and the data loader has no length to "
                    "count it by; set it (or `total_steps`) in the configuration of the scheduler, or pass a data "
                    "loader with `__len__`."
                )
            self.total_steps = self.num_epochs * self.num_steps_per_epoch
        self.steps = 0
        self.step_batch(0)

    @override
    def step(self, metric: float | None = None) -> None:
        pass

    @override
    def step_batch(self, batch_num_total: int | None = None) -> None:
        self.steps = self.steps + 1 if batch_num_total is None else batch_num_total
        self._assign()

    @override
    def get_values(self) -> list[float]:
        if self.warmup_steps > 0 and self.steps < self.warmup_steps:
            share = self.steps / self.warmup_steps
            return [share * base for base in self.base_values]
        assert self.total_steps is not None, "computed when the scheduler is made"
        end = self.end_learning_rate
        if self.steps >= self.total_steps:
            return [end for _ in self.base_values]
        left = (self.total_steps - self.steps) / (self.total_steps - self.warmup_steps)
        share = left**self.power
        return [share * (base - end) + end for base in self.base_values]


@LearningRateScheduler.register("linear_with_warmup")
class LinearWithWarmup(PolynomialDecay):
    """Rises linearly over the warm-up steps, then falls linearly to zero; arguments as of :class:`PolynomialDecay`."""

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
@dataclass(eq=False, repr=False)
class CosineWithRestarts(LearningRateScheduler):
    """Falls along a cosine over a cycle of epochs, then starts again.

    Args:
        t_initial: Epochs in the first cycle.
        t_mul: Factor by which each cycle is longer than the one before.
        eta_min: Smallest learning rate.
        eta_mul: Factor between the first learning rates of a cycle and of the cycle before.

    Source: SGDR, arXiv:1608.03983.
    """

    optimizer: torch.optim.Optimizer
    t_initial: int
    t_mul: float = 1.0
    eta_min: float = 0.0
    eta_mul: float = 1.0
    last_epoch: int = -1

    def __post_init__(self) -> None:
        if self.t_initial <= 0 or self.eta_min < 0 or self.t_mul <= 0:
            raise ConfigurationError(
                f"The scheduler 'cosine' got `t_initial={self.t_initial}`, `t_mul={self.t_mul}` and "
                f"`eta_min={self.eta_min}`; set the first to 1 epoch or more, the second above 0, and the third to 0 "
                "or more."
            )
        if self.t_initial == self.t_mul == self.eta_mul == 1:
            logger.warning("'cosine' with t_initial = t_mul = eta_mul = 1 keeps the learning rate; change one.")
        self._last_restart = self._n_restarts = 0
        self._cycle_len = self.t_initial
        super().__init__(self.optimizer, self.last_epoch)

    @override
    def get_values(self) -> list[float]:
        if self.last_epoch == -1:
            return self.base_values
        step = self.last_epoch + 1
        position = step - self._last_restart
        if position % self._cycle_len == 0:
            self._n_restarts += 1
            self._last_restart = step
            position = 0
        # Shrinking cycles end with cycles of one epoch, where AllenNLP would divide by zero.
        self._cycle_len = max(int(self.t_initial * self.t_mul**self._n_restarts), 1)
        # numpy's cosine, as in AllenNLP; `math.cos` may differ in the last bit.
        falling = float(np.cos(np.pi * (position % self._cycle_len) / self._cycle_len)) + 1
        highest = [base * self.eta_mul**self._n_restarts for base in self.base_values]
        return [self.eta_min + ((rate - self.eta_min) / 2) * falling for rate in highest]


@LearningRateScheduler.register("slanted_triangular")
@dataclass(eq=False, repr=False)
class SlantedTriangular(LearningRateScheduler):
    """Rises linearly over a part of the steps, then falls linearly over the rest.

    With gradual unfreezing only the last layer trains in the first epoch, the last two in the second, and so on. The
    triangle then spans one epoch until all layers train, and the rest of the training afterwards. The layers are the
    parameter groups, of which the last must be the empty default group.

    Args:
        num_steps_per_epoch: Optimizer steps of an epoch; replaced by the number counted in the first epochs.
        cut_frac: Part of the steps in which the learning rate rises.
        ratio: Highest over lowest learning rate.
        gradual_unfreezing: Unfreeze one more group in each epoch.
        discriminative_fine_tuning: Give each group a smaller learning rate than the group after it.
        decay_factor: Factor between the learning rates of neighbouring groups.

    Source: ULMFiT, arXiv:1801.06146.
    """

    optimizer: torch.optim.Optimizer
    num_epochs: int
    num_steps_per_epoch: int | None = None
    cut_frac: float = 0.1
    ratio: float = 32
    last_epoch: int = -1
    gradual_unfreezing: bool = False
    discriminative_fine_tuning: bool = False
    decay_factor: float = 0.38

    def __post_init__(self) -> None:
        if not (0 <= self.cut_frac < 1 and self.ratio > 0):
            raise ConfigurationError(
                f"The scheduler 'slanted_triangular' got `cut_frac={self.cut_frac}` and `ratio={self.ratio}`; set the "
                "first to 0 or more and below 1, the second above 0."
            )
        self.freezing_current = self.gradual_unfreezing
        self.num_layers_to_unfreeze = self.last_batch_num_total = 0
        # Steps completed at the end of each epoch, the start included.
        self.batch_num_total_epoch_end: list[int] = []
        groups = self.optimizer.param_groups
        if self.gradual_unfreezing and groups[-1]["params"]:
            raise ConfigurationError(
                "`gradual_unfreezing` counts parameter groups from the end, so the default group must be empty, but "
                f"it holds {len(groups[-1]['params'])} parameters; let `parameter_groups` of the optimizer name every "
                "layer."
            )
        if (self.gradual_unfreezing or self.discriminative_fine_tuning) and len(groups) < 3:
            raise ConfigurationError(
                f"The optimizer has {len(groups)} parameter groups, but there should be at least 3 (2 and the default "
                "one) for gradual unfreezing or discriminative fine-tuning; set `parameter_groups` of the optimizer."
            )
        super().__init__(self.optimizer, self.last_epoch)
        self.step()
        if self.discriminative_fine_tuning:
            layers = [index for index, group in enumerate(groups) if group["params"]]
            for exponent, index in enumerate(reversed(layers)):
                self.base_values[index] *= self.decay_factor**exponent
                groups[index]["lr"] = self.base_values[index]
        self.step_batch(0)

    @override
    def step(self, metric: float | None = None) -> None:
        self.last_epoch += 1
        self.batch_num_total_epoch_end.append(self.last_batch_num_total)
        if self.gradual_unfreezing:
            self.num_layers_to_unfreeze = self.last_epoch + 1
            self.freezing_current = self.num_layers_to_unfreeze < len(self.optimizer.param_groups) - 1
            self._freeze()

    @override
    def step_batch(self, batch_num_total: int | None = None) -> None:
        self.last_batch_num_total = self.last_batch_num_total + 1 if batch_num_total is None else batch_num_total
        self._assign()

    @override
    def get_values(self) -> list[float]:
        ends = self.batch_num_total_epoch_end
        groups = self.optimizer.param_groups
        num_steps = max(self.num_steps_per_epoch or 1, self.last_batch_num_total)
        if len(ends) > 1:
            num_steps = int(ends[-1] / (len(ends) - 1))
        # The step before the triangle: one spans each epoch with frozen layers, the last one all other steps.
        first = ends[-1]
        if not self.freezing_current:
            first = ends[len(groups) - 2] if self.gradual_unfreezing else 0
            num_steps = self.num_epochs * num_steps - first
        step = min(self.last_batch_num_total - first, num_steps)
        cut = int(num_steps * self.cut_frac)
        # Epochs of different lengths may leave no step to the last triangle.
        falling = (step - cut) / (num_steps - cut) if num_steps != cut else 1.0
        share = step / cut if step < cut else 1 - falling
        return [base * (1 + share * (self.ratio - 1)) / self.ratio for base in self.base_values]

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self.gradual_unfreezing:
            self._freeze()

    def _freeze(self) -> None:
        if self.freezing_current:
            logger.info("Gradual unfreezing. Training only the top %d layers.", self.num_layers_to_unfreeze)
        else:
            logger.info("Gradual unfreezing finished. Training all layers.")
        # Counted from the end, where the empty default group is number 0.
        for index, group in enumerate(reversed(self.optimizer.param_groups)):
            for parameter in group["params"]:
                parameter.requires_grad = index <= self.num_layers_to_unfreeze


@LearningRateScheduler.register("combined")
class CombinedLearningRateScheduler(LearningRateScheduler):
    """Runs several schedulers one after the other; after the last, the learning rate is constant.

    ``schedulers`` are pairs of a number of epochs and the scheduler for them. Each starts from the learning rate at
    which the one before it ended. As in AllenNLP, a later scheduler counts steps from the start of the training, and
    is stepped once when it starts; not so ``slanted_triangular``, whose triangle spans its own epochs, where AllenNLP
    divides by zero.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: list[tuple[int, Lazy[LearningRateScheduler]]],
        num_steps_per_epoch: int | None = None,
        last_epoch: int = -1,
        num_epochs: int | None = None,
    ) -> None:
        if not schedulers:
            raise ConfigurationError("`schedulers` of the scheduler 'combined' is empty; add at least one pair.")
        super().__init__(optimizer, last_epoch)
        self.num_steps_per_epoch = num_steps_per_epoch
        self.schedulers = [(num_epochs, make_lazy(LearningRateScheduler, lazy)) for num_epochs, lazy in schedulers]
        self._num_epochs = num_epochs
        self.current_scheduler: LearningRateScheduler | None = None
        self._current_index: int | None = None
        self._last_batch = 0  # optimizer steps so far
        self._first_batch = 0  # those before the current scheduler
        self._choose()

    @property
    @override
    def needs_metric(self) -> bool:
        if self.current_scheduler is not None and self.current_scheduler.needs_metric:
            return True
        if self._num_epochs is None:
            return False
        # A scheduler starts after the last epoch of the one before it, also if that ends the training.
        starts = itertools.accumulate((num_epochs for num_epochs, _ in self.schedulers), initial=0)
        kinds = [
            lazy.constructor
            for start, (_, lazy) in zip(starts, self.schedulers, strict=False)
            if lazy is not None and self.last_epoch + 1 < start <= self._num_epochs
        ]
        plateaus = (ReduceOnPlateauLearningRateScheduler, ReduceLROnPlateau)
        return any(isinstance(kind, type) and issubclass(kind, plateaus) for kind in kinds)

    @override
    def end_epoch(self, metric: float | None) -> None:
        self.step(metric)

    @override
    def step(self, metric: float | None = None) -> None:
        self.last_epoch += 1
        self.metric = metric
        is_new = self._choose()
        # A scheduler that was only just made is stepped too, as in AllenNLP.
        if self.current_scheduler is not None and not (is_new and self._counts_own_steps):
            self.current_scheduler.end_epoch(metric)

    @override
    def step_batch(self, batch_num_total: int | None = None) -> None:
        self._last_batch = self._last_batch + 1 if batch_num_total is None else batch_num_total
        if self.current_scheduler is not None:
            own = self._last_batch - self._first_batch
            self.current_scheduler.step_batch(own if self._counts_own_steps else batch_num_total)

    @property
    def _counts_own_steps(self) -> bool:
        return isinstance(self.current_scheduler, SlantedTriangular)

    @override
    def state_dict(self) -> dict[str, Any]:
        current = self.current_scheduler
        return {
            "last_epoch": self.last_epoch,
            "num_steps_per_epoch": self.num_steps_per_epoch,
            "batches": (self._first_batch, self._last_batch),
            "current_scheduler": None if current is None else current.state_dict(),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        self.num_steps_per_epoch = state_dict["num_steps_per_epoch"]
        rates = [(group["lr"], group["initial_lr"]) for group in self.optimizer.param_groups]
        self._choose()
        self._first_batch, self._last_batch = state_dict.get("batches", (0, 0))
        if self.current_scheduler is not None:
            self.current_scheduler.load_state_dict(state_dict["current_scheduler"])
        # Constructing a scheduler sets its initial rates.
        for group, (rate, initial) in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
            group["initial_lr"] = initial

    def _choose(self) -> bool:
        """Make the scheduler of the coming epoch, unless it is the current one; return whether it is a new one."""
        ends = itertools.accumulate(num_epochs for num_epochs, _ in self.schedulers)
        index = next((index for index, end in enumerate(ends) if self.last_epoch + 1 < end), None)
        # An unchanged scheduler keeps its state; a new one starts from the rate that the last one has reached.
        if index == self._current_index:
            return False
        self._current_index = index
        self._first_batch = self._last_batch
        self.current_scheduler = None
        if index is None:
            return True
        for group in self.optimizer.param_groups:
            group[self._initial_param_group_field] = group[self.param_group_field]
        num_epochs, lazy = self.schedulers[index]
        assert lazy is not None
        self.current_scheduler = lazy.construct(
            optimizer=self.optimizer, num_epochs=num_epochs, num_steps_per_epoch=self.num_steps_per_epoch
        )
        self._warn_of_counted_steps(index, num_epochs)
        return True

    def _warn_of_counted_steps(self, index: int, num_epochs: int) -> None:
        current = self.current_scheduler
        if not isinstance(current, PolynomialDecay) or self._first_batch == 0 or self.num_steps_per_epoch is None:
            return
        end = self._first_batch + num_epochs * self.num_steps_per_epoch
        if current.total_steps is not None and current.total_steps < end:
            logger.warning(
                "Scheduler %d of 'combined' (%s) counts steps from the start of the training, as in AllenNLP: it "
                "falls until step %d and starts after step %d. Put it first, or use 'polynomial_decay' with "
                "`total_steps=%d`, to fall until the end of its epochs.",
                index + 1,
                type(current).__name__,
                current.total_steps,
                self._first_batch,
                end,
            )


@MomentumScheduler.register("inverted_triangular")
@dataclass(eq=False, repr=False)
class InvertedTriangular(MomentumScheduler):
    """Falls linearly over ``cool_down`` epochs, rises again over ``warm_up`` epochs, then stays constant.

    ``ratio`` is the highest over the lowest momentum.
    """

    optimizer: torch.optim.Optimizer
    cool_down: int
    warm_up: int
    ratio: float = 10
    last_epoch: int = -1

    def __post_init__(self) -> None:
        super().__init__(self.optimizer, self.last_epoch)

    @override
    def get_values(self) -> list[float]:
        step = self.last_epoch + 1
        if step <= self.cool_down:
            return [base - (base - base / self.ratio) * (step / self.cool_down) for base in self.base_values]
        if step <= self.cool_down + self.warm_up:
            risen = step - self.cool_down
            lowest = [base / self.ratio for base in self.base_values]
            pairs = zip(self.base_values, lowest, strict=True)
            return [low + (base - low) * risen / self.warm_up for base, low in pairs]
        return self.base_values
