"""From the gradients of micro-batches to one update of the device's weights."""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from poptorch_emulator import optim
from poptorch_emulator.enums import MeanReductionStrategy, ReductionType
from poptorch_emulator.errors import Error
from poptorch_emulator.half import round_to_half
from poptorch_emulator.memory import DeviceMemory
from poptorch_emulator.options import TrainingOptions
from poptorch_emulator.update_rules import AdamRule, LambRule, RmspropRule, SgdRule, TensorflowRmspropRule, UpdateRule

Gradients = dict[str, list[Tensor]]


class GradientAccumulator:
    """Accumulates gradients in the declared format, and reduces them over micro-batches and replicas."""

    def __init__(self, memory: DeviceMemory, options: TrainingOptions, accum_type: torch.dtype | None) -> None:
        self._parameters = memory.parameters
        self._groups = memory.groups
        self._num_accumulated = options.gradient_accumulation
        self._takes_mean = options.accumulation_and_replication_reduction_type is ReductionType.Mean
        strategy = options.meanAccumulationAndReplicationReductionStrategy
        self._running = self._takes_mean and strategy is MeanReductionStrategy.Running
        self._accum_type = accum_type
        self._sums: dict[str, list[Tensor | None]] = {}
        self._counts: dict[tuple[str, int], int] = {}

    def take(self, replica: int) -> list[Tensor]:
        """Add the gradients that a backward pass left in the parameters, and return them."""
        taken = []
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            parameter.grad = None
            if gradient is not None:
                self._add(name, self._groups[name].group_of[replica], gradient)
                taken.append(gradient)
        return taken

    def _add(self, name: str, group: int, gradient: Tensor) -> None:
        kept_in = self._accum_type or gradient.dtype
        gradient = _round_to(gradient, kept_in)
        sums = self._sums.setdefault(name, [None] * self._groups[name].num_groups)
        count = self._counts[name, group] = self._counts.get((name, group), 0) + 1
        total = sums[group]
        if total is None:
            sums[group] = gradient
            return
        wide = _widen(total)
        taken = _widen(gradient)
        sums[group] = _round_to(wide + (taken - wide) / count if self._running else wide + taken, kept_in)

    def reduce(self, loss_scaling: float) -> Gradients:
        """Return the gradients of one update, in single precision or better, divided by the loss scaling."""
        reduced = {}
        for name, sums in self._sums.items():
            divisor = loss_scaling
            if self._takes_mean and not self._running:
                divisor *= self._num_accumulated * self._groups[name].num_members
            totals = [_widen(total) for total in sums if total is not None]
            reduced[name] = totals if divisor == 1 else [total / divisor for total in totals]
        return reduced


class AutomaticLossScaling:
    """Doubles the loss scaling after every update, or halves it when gradients come close to overflow."""

    # A gradient value above this share of the largest number of its format is about to overflow.
    _EDGE = 0.125
    # A larger share of such values means that the scaling is too large.
    _TOLERATED_SHARE = 1e-7

    def __init__(self, initial: float) -> None:
        self.scaling = initial
        self._num_values = 0
        self._num_large = 0
        self._limit = float("inf")

    def observe(self, loss: Tensor, gradients: Iterable[Tensor]) -> None:
        """Take note of the unscaled loss and the scaled gradients of a micro-batch."""
        # The backward pass starts from the scaling in the format of the loss, which can hold powers of two up to this.
        self._limit = 2.0 ** (math.frexp(torch.finfo(loss.dtype).max)[1] - 1)
        for gradient in gradients:
            edge = self._EDGE * torch.finfo(gradient.dtype).max
            # Counts NaN as large.
            self._num_large += gradient.numel() - int((gradient.abs() <= edge).sum())
            self._num_values += gradient.numel()

    def update(self) -> None:
        """Choose the scaling of the next update from the gradients observed since the last."""
        too_large = self._num_large > self._TOLERATED_SHARE * self._num_values
        self.scaling = min(self.scaling * (0.5 if too_large else 2.0), self._limit)
        self._num_values = self._num_large = 0


class DeviceOptimizer:
    """The optimizer inside a compiled program, with the hyperparameters that ``setOptimizer`` passed last."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        scales_automatically: bool,
    ) -> None:
        self._users = optimizer
        self._rule = rule_of(optimizer)
        self._kind = _kind_of(optimizer)
        self.accum_type: torch.dtype | None = getattr(optimizer, "accum_type", None)
        names = {id(parameter): name for name, parameter in named_parameters}
        self._members = [
            [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
            for group in optimizer.param_groups
        ]
        self.state: dict[str, dict[str, Any]] = {}
        self.num_updates = 0
        self._scales_automatically = scales_automatically
        self._read(optimizer)
        self.scaling = AutomaticLossScaling(self._scalars["loss_scaling"]) if scales_automatically else None

    def _read(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = self._hyperparameters(optimizer)
        self._scalars = _scalars(optimizer)
        self._constants = self._constants_of(optimizer)
        if isinstance(optimizer, optim.Optimizer):
            optimizer.connect(self._export)

    def _hyperparameters(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        names = self._rule.hyperparameters
        return [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]

    # ---- Hyperparameters ----

    @property
    def loss_scaling(self) -> float:
        return self._scalars["loss_scaling"] if self.scaling is None else self.scaling.scaling

    @property
    def is_current(self) -> bool:
        """Whether the user's optimizer still has the hyperparameters of the program."""
        return self._hyperparameters(self._users) == self._groups and _scalars(self._users) == self._scalars

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the present hyperparameters of ``optimizer``, which becomes the user's; the device's state stays."""
        if _kind_of(optimizer) != self._kind:
            raise Error(
                f"The program was compiled with {type(self._users).__name__} and cannot take a "
                f"{type(optimizer).__name__}; make a new training model for another optimizer."
            )
        if len(optimizer.param_groups) != len(self._groups):
            raise Error(
                f"The program was compiled with {len(self._groups)} parameter groups and cannot take "
                f"{len(optimizer.param_groups)}."
            )
        for compiled, given in zip(self._constants, self._constants_of(optimizer), strict=True):
            _check_constants(compiled, given)
        if optimizer is not self._users:
            self.disconnect()
        self._users = optimizer
        self._read(optimizer)

    def _constants_of(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """Return the constants by their names in messages: a dict for each parameter group, then one for all."""
        is_constant = partial(_is_constant, optimizer)
        constants = [
            {
                f"`{name}` of parameter group {number}": value
                for name, value in group.items()
                if is_constant(name, value)
            }
            for number, group in enumerate(self._hyperparameters(optimizer))
        ]
        scalars = _scalars(optimizer)
        if self._scales_automatically or not is_constant("loss_scaling", scalars["loss_scaling"]):
            del scalars["loss_scaling"]
        return [*constants, {f"`{name}`": value for name, value in scalars.items()}]

    # ---- Updates ----

    def update(self, weights: Mapping[str, list[Tensor]], gradients: Gradients) -> None:
        """Update the weights once; those without a gradient stay unchanged."""
        self.num_updates += 1
        clipping = _clip_factor(gradients, self._scalars["max_grad_norm"])
        for members, group in zip(self._members, self._groups, strict=True):
            for name in members:
                for number, gradient in enumerate(gradients.get(name, ())):
                    if clipping is not None:
                        gradient = gradient * clipping
                    state = self.state.setdefault(f"{name}[{number}]" if number else name, {})
                    self._rule.update(weights[name][number], gradient, state, group, self.num_updates)
        if self.scaling is not None:
            self.scaling.update()

    # ---- State ----

    def load_pending_state(self) -> None:
        """Load the state that the user has loaded into the optimizer since the last call."""
        pending = self._users.take_pending_state() if isinstance(self._users, optim.Optimizer) else None
        if pending is None or pending[0] is None:
            return
        state, whole = pending
        self.state = _copy_state(state)
        self.num_updates = int(whole["num_updates"])
        if self.scaling is not None:
            self.scaling.scaling = float(whole["loss_scaling"])

    def disconnect(self) -> None:
        if isinstance(self._users, optim.Optimizer):
            self._users.connect(None)

    def _export(self) -> optim.DeviceState:
        self.load_pending_state()
        return _copy_state(self.state), {"num_updates": self.num_updates, "loss_scaling": self.loss_scaling}


def rule_of(optimizer: torch.optim.Optimizer) -> UpdateRule:
    # By class: a `step` that a subclass overrides does not run on a device.
    first = _half_type(optimizer, "first_order_momentum_accum_type")
    second = _half_type(optimizer, "second_order_momentum_accum_type")
    if any(group.get("maximize") or group.get("amsgrad") for group in optimizer.param_groups):
        raise ValueError("`maximize=True` and `amsgrad=True` are not supported on IPUs; leave them out.")
    if any(group.get("nesterov") for group in optimizer.param_groups):
        raise ValueError("Nesterov momentum is currently not supported on IPUs; leave `nesterov=True` out.")
    if isinstance(optimizer, optim.LAMB):
        return LambRule({"exp_avg": first, "exp_avg_sq": second})
    if isinstance(optimizer, torch.optim.Adam):
        return AdamRule({"exp_avg": first, "exp_avg_sq": second}, decoupled=_is_decoupled(optimizer))
    if isinstance(optimizer, torch.optim.RMSprop):
        rule = TensorflowRmspropRule if getattr(optimizer, "use_tf_variant", False) else RmspropRule
        return rule({"momentum_buffer": first, "grad_avg": first, "square_avg": second})
    if isinstance(optimizer, torch.optim.SGD):
        return SgdRule({"momentum_buffer": _half_type(optimizer, "velocity_accum_type")})
    raise Error(
        f"{type(optimizer).__name__} is not supported on IPUs; use SGD, Adam, AdamW, RMSprop or LAMB of "
        "`poptorch.optim`, or the first four of `torch.optim`."
    )


def _kind_of(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """Return what two optimizers must have in common for one to replace the other, whether of torch or of here."""
    rule = rule_of(optimizer)
    return type(rule), _is_decoupled(optimizer), getattr(optimizer, "use_combined_accum", False)


def _is_decoupled(optimizer: torch.optim.Optimizer) -> bool:
    # In torch, AdamW is Adam with this set.
    return bool(optimizer.defaults.get("decoupled_weight_decay", False))


# The only values that torch's optimizers compile in; with None, any value. Others cannot be marked.
_TORCH_CONSTANTS: Mapping[str, float | None] = {
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "eps": 1e-8,
    "loss_scaling": 1.0,
    **dict.fromkeys(("alpha", "betas", "centered")),
}


def _is_constant(optimizer: torch.optim.Optimizer, name: str, value: object) -> bool:
    if isinstance(optimizer, optim.Optimizer):
        attributes = optimizer.variable_attrs
        return name not in attributes or attributes.isConstant(name)
    constants = {**_TORCH_CONSTANTS, **({"weight_decay": 0.01} if _is_decoupled(optimizer) else {})}
    return name in constants and constants[name] in (None, value)


def _check_constants(compiled: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    for name, value in compiled.items():
        if name not in given or given[name] != value:
            became = f"{given[name]}" if name in given else "variable"
            raise Error(
                f"{name} was compiled as the constant {value} and cannot become {became}; before the first call, pass "
                "it to the constructor of an optimizer of `poptorch.optim`, or mark it with "
                "`variable_attrs.markAsVariable`."
            )
    for name, value in given.items():
        if name not in compiled:
            raise Error(
                f"{name} was compiled as a variable and cannot become the constant {value}; pass it to the "
                "constructor of an optimizer of `poptorch.optim`."
            )


def _half_type(optimizer: torch.optim.Optimizer, name: str) -> torch.dtype | None:
    # Rules compute in single precision or better, so only half precision differs.
    return torch.float16 if getattr(optimizer, name, None) is torch.float16 else None


def _scalars(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    return {
        "loss_scaling": float(getattr(optimizer, "loss_scaling", 1.0)),
        "max_grad_norm": float(getattr(optimizer, "max_grad_norm", float("inf"))),
    }


def _clip_factor(gradients: Gradients, max_norm: float) -> Tensor | None:
    """Return the factor that reduces the norm over all weights to ``max_norm``; ``None`` without a limit."""
    if max_norm == float("inf") or not gradients:
        return None
    norms = torch.stack([gradient.norm() for values in gradients.values() for gradient in values])
    # As `torch.nn.utils.clip_grad_norm_` does.
    return (max_norm / (norms.norm() + 1e-6)).clamp(max=1.0)


def _copy_state(state: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    return {name: {key: value.clone() for key, value in held.items()} for name, held in state.items()}


def _widen(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _round_to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return round_to_half(tensor) if dtype is torch.float16 else tensor.to(dtype)
