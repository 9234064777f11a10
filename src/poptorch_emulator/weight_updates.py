"""Gradients of micro-batches on their way to one weight update."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from poptorch_emulator import optim
from poptorch_emulator.errors import Error
from poptorch_emulator.half import to_half
from poptorch_emulator.memory import ReplicaGroups
from poptorch_emulator.optim import SGD, Optimizer
from poptorch_emulator.update_rules import AdamRule, LambRule, RmspropRule, SgdRule, TensorflowRmspropRule, UpdateRule

Gradients = dict[str, list[Tensor]]


class GradientAccumulator:
    """Accumulates in the declared format, then reduces over micro-batches and replicas.

    Args:
        parameters: The model's parameters by name.
        groups: Which replicas share each parameter.
        num_accumulated: Micro-batches of a replica.
        takes_mean: Whether the mean is taken, not the sum.
        running_mean: Whether the mean is kept while accumulating; accumulators in half precision do so always.
        accum_type: Format of the accumulators; that of each weight when ``None``.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        groups: Mapping[str, ReplicaGroups],
        *,
        num_accumulated: int,
        takes_mean: bool,
        running_mean: bool,
        accum_type: torch.dtype | None,
    ) -> None:
        self._parameters = parameters
        self._groups = groups
        self._num_accumulated = num_accumulated
        self._takes_mean = takes_mean
        self._running = takes_mean and (running_mean or accum_type is torch.float16)
        self._accum_type = accum_type
        self._sums: dict[str, list[Tensor | None]] = {}
        self._counts: dict[tuple[str, int], int] = {}

    def take(self, replica: int) -> list[Tensor]:
        """Add the gradients that a backward pass left in the parameters, and return them."""
        taken = []
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                self._add(name, self._groups[name].group_of(replica), gradient)
                taken.append(gradient)
        return taken

    def _add(self, name: str, group: int, gradient: Tensor) -> None:
        kept_in = self._accum_type or gradient.dtype
        gradient = _rounded(gradient, kept_in)
        sums = self._sums.setdefault(name, [None] * self._groups[name].num_groups)
        count = self._counts[name, group] = self._counts.get((name, group), 0) + 1
        total = sums[group]
        if total is None:
            sums[group] = gradient
            return
        wide, taken = _widened(total), _widened(gradient)
        sums[group] = _rounded(wide + (taken - wide) / count if self._running else wide + taken, kept_in)

    def reduced(self, loss_scaling: float) -> Gradients:
        """Return the gradients of one update, in single precision or better, without the loss scaling.

        Args:
            loss_scaling: Factor that the losses had.
        """
        return {
            name: [self._unscaled(name, total, loss_scaling) for total in sums if total is not None]
            for name, sums in self._sums.items()
        }

    def _unscaled(self, name: str, total: Tensor, loss_scaling: float) -> Tensor:
        divisor = loss_scaling
        if self._takes_mean and not self._running:
            divisor *= self._num_accumulated * self._groups[name].num_members
        total = _widened(total)
        return total if divisor == 1 else total / divisor


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return to_half(tensor) if dtype is torch.float16 else tensor.to(dtype)


# A gradient value above this share of what its format can hold is about to overflow.
_EDGE = 0.125
# More than this share of such values, and the scaling is too large.
_TOLERATED_SHARE = 1e-7


class AutomaticLossScaling:
    """Doubles the loss scaling after every update, or halves it when gradients come near the end of their format.

    Args:
        initial: First scaling.
    """

    def __init__(self, initial: float) -> None:
        self.scaling = initial
        self._num_values = 0
        self._num_large = 0
        # The scaled loss starts in its own format, in which the scaling itself has to be finite.
        self._most = float("inf")

    def limit(self, loss: Tensor) -> None:
        """Keep the scaling within the format of ``loss``: powers of two up to the largest it can hold."""
        self._most = 2.0 ** (math.frexp(torch.finfo(loss.dtype).max)[1] - 1)

    def observe(self, gradients: Iterable[Tensor]) -> None:
        """Count the values of scaled gradients of a micro-batch."""
        for gradient in gradients:
            edge = _EDGE * torch.finfo(gradient.dtype).max
            # A NaN is not smaller than the edge either.
            self._num_large += gradient.numel() - int((gradient.abs() <= edge).sum())
            self._num_values += gradient.numel()

    def update(self) -> None:
        """Choose the scaling of the next update from what was observed since the last."""
        too_large = self._num_large > _TOLERATED_SHARE * self._num_values
        self.scaling = min(self.scaling * (0.5 if too_large else 2.0), self._most)
        self._num_values = self._num_large = 0


def rule_of(optimizer: torch.optim.Optimizer) -> UpdateRule:
    """Return the rule of a user's optimizer; a ``step`` of its own is not run on a device.

    Raises:
        Error: If no device has it.
    """
    first = _half(optimizer, "first_order_momentum_accum_type")
    second = _half(optimizer, "second_order_momentum_accum_type")
    if any(group.get("maximize") or group.get("amsgrad") for group in optimizer.param_groups):
        raise Error("`maximize=True` and `amsgrad=True` are not supported on IPUs; leave them out.")
    if isinstance(optimizer, optim.LAMB):
        return LambRule({"exp_avg": first, "exp_avg_sq": second})
    # In torch, AdamW is an Adam.
    if isinstance(optimizer, torch.optim.Adam):
        decoupled = isinstance(optimizer, torch.optim.AdamW)
        return AdamRule({"exp_avg": first, "exp_avg_sq": second}, decoupled=decoupled)
    if isinstance(optimizer, torch.optim.RMSprop):
        rule = TensorflowRmspropRule if getattr(optimizer, "use_tf_variant", False) else RmspropRule
        return rule({"momentum_buffer": first, "grad_avg": first, "square_avg": second})
    if isinstance(optimizer, torch.optim.SGD):
        return SgdRule({"momentum_buffer": _half(optimizer, "velocity_accum_type")})
    raise Error(
        f"{type(optimizer).__name__} is not supported on IPUs; use SGD, Adam, AdamW, RMSprop or LAMB of "
        "`poptorch.optim`, or the first four of `torch.optim`."
    )


def _half(optimizer: torch.optim.Optimizer, name: str) -> torch.dtype | None:
    # Single precision is what a rule computes in anyway, or better.
    return torch.float16 if getattr(optimizer, name, None) is torch.float16 else None


# What a group of any supported optimizer may hold that its rule reads.
_HYPERPARAMETERS = (
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "momentum",
    "dampening",
    "nesterov",
    "alpha",
    "centered",
    "max_weight_norm",
    "bias_correction",
)


class DeviceOptimizer:
    """Updates the device's weights with hyperparameters that were current when it was last told.

    Args:
        optimizer: The user's, of ``poptorch.optim`` or of torch.
        named_parameters: The model's parameters.

    Raises:
        Error: If there is no such optimizer on a device.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._rule = rule_of(optimizer)
        self._kind = type(optimizer)
        names = {id(parameter): name for name, parameter in named_parameters}
        self._members = [
            [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
            for group in optimizer.param_groups
        ]
        self._groups = [_hyperparameters(group) for group in optimizer.param_groups]
        self._constants = _constants(optimizer)
        self._take_scalars(optimizer)
        self.state: dict[str, dict[str, Any]] = {}
        self.num_updates = 0

    # What setOptimizer changes

    def differs_from(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether the user's optimizer says something else than what was compiled or last taken."""
        same_scalars = all(
            getattr(optimizer, name, default) == getattr(self, name)
            for name, default in (("loss_scaling", 1.0), ("max_grad_norm", float("inf")))
        )
        return not same_scalars or [_hyperparameters(group) for group in optimizer.param_groups] != self._groups

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the present hyperparameters of the user's optimizer.

        Raises:
            Error: If it is of another kind, has other groups, or changes what was compiled as a constant.
        """
        if type(optimizer) is not self._kind:
            raise Error(
                f"The program was compiled with {self._kind.__name__} and cannot take a {type(optimizer).__name__}; "
                "make a new training model for another optimizer."
            )
        groups = [_hyperparameters(group) for group in optimizer.param_groups]
        if len(groups) != len(self._groups):
            raise Error(
                f"The program was compiled with {len(self._groups)} parameter groups and cannot take {len(groups)}."
            )
        for number, (old, new) in enumerate(zip(self._groups, groups, strict=True)):
            for name in self._constants & old.keys():
                if old[name] != new.get(name):
                    raise Error(
                        f"`{name}` of parameter group {number} was compiled as the constant {old[name]} and cannot "
                        f"become {new.get(name)}; pass `{name}` to the optimizer's constructor, or mark it with "
                        "`variable_attrs.markAsVariable` before the first call."
                    )
        self._groups = groups
        self._take_scalars(optimizer)

    def _take_scalars(self, optimizer: torch.optim.Optimizer) -> None:
        self.loss_scaling = float(getattr(optimizer, "loss_scaling", 1.0))
        self.max_grad_norm = float(getattr(optimizer, "max_grad_norm", float("inf")))
        self.accum_type: torch.dtype | None = getattr(optimizer, "accum_type", None)

    # Updates

    def update(self, weights: Mapping[str, list[Tensor]], gradients: Gradients) -> None:
        """Make one weight update.

        Args:
            weights: Values of each weight by name, one for each of its replica groups.
            gradients: Unscaled gradients, likewise; weights without one stay as they are.
        """
        self.num_updates += 1
        clipping = _clip_factor(gradients, self.max_grad_norm)
        for members, group in zip(self._members, self._groups, strict=True):
            for name in members:
                for number, gradient in enumerate(gradients.get(name, ())):
                    if clipping is not None:
                        gradient = gradient * clipping
                    state = self.state.setdefault(f"{name}[{number}]" if number else name, {})
                    self._rule.update(weights[name][number], gradient, state, group, self.num_updates)

    # State

    def export(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return copies of the state of every weight by name, and what belongs to the whole program."""
        state = {name: {key: value.clone() for key, value in held.items()} for name, held in self.state.items()}
        return state, {"num_updates": self.num_updates, "loss_scaling": self.loss_scaling}

    def restore(self, state: Mapping[str, Mapping[str, Tensor]], whole: Mapping[str, Any]) -> None:
        """Take what :meth:`export` returned."""
        self.state = {name: {key: value.clone() for key, value in held.items()} for name, held in state.items()}
        self.num_updates = int(whole["num_updates"])


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in _HYPERPARAMETERS if name in group}


def _constants(optimizer: torch.optim.Optimizer) -> set[str]:
    if not isinstance(optimizer, optim.Optimizer):
        return set()
    attributes = optimizer.variable_attrs
    names = [name for name in optimizer.param_groups[0] if name in _HYPERPARAMETERS]
    known = [name for name in names if name in attributes._allowed]
    return {name for name in known if attributes.isConstant(name)}


def _clip_factor(gradients: Gradients, max_norm: float) -> Tensor | None:
    """Return the factor that brings the norm over all weights down to ``max_norm``; ``None`` without a limit."""
    if max_norm == float("inf") or not gradients:
        return None
    norms = torch.stack([gradient.norm() for values in gradients.values() for gradient in values])
    return (max_norm / (norms.norm() + 1e-6)).clamp(max=1.0)


State = tuple[dict[str, dict[str, Tensor]], dict[str, Any]]


class OptimizerLink:
    """Keeps hyperparameters and state of both sides apart, and exchanges them when told to.

    Args:
        optimizer: The user's; SGD with a rate of 0.01 when there is none.

    Attributes:
        users: The user's optimizer.
        device: The program's, once it is compiled.
        scaling: Automatic loss scaling, if it is on.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.users = optimizer
        self.device: DeviceOptimizer | None = None
        self.scaling: AutomaticLossScaling | None = None

    def compile(self, model: nn.Module, *, scales_automatically: bool) -> None:
        """Take the present hyperparameters into a program."""
        if self.users is None:
            self.users = SGD(model.parameters(), lr=0.01)
        self.device = DeviceOptimizer(self.users, model.named_parameters())
        if scales_automatically:
            self.scaling = AutomaticLossScaling(self.device.loss_scaling)
        self._connect()

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the present hyperparameters of ``optimizer``, which is the user's from now on."""
        if self.device is not None:
            self.device.take(optimizer)
        if self.users is not optimizer:
            self.disconnect()
        self.users = optimizer
        self._connect()

    def load_pending_state(self) -> None:
        """Give the program the state that the user has loaded since the last call."""
        if not isinstance(self.users, Optimizer) or self.device is None:
            return
        pending = self.users.take_pending_state()
        if pending is not None and pending[0] is not None:
            self.device.restore(*pending)
            if self.scaling is not None:
                self.scaling.scaling = float(pending[1]["loss_scaling"])

    def disconnect(self) -> None:
        """Leave the state of the program with the user's optimizer."""
        if isinstance(self.users, Optimizer):
            self.users.connect(None)

    @property
    def is_current(self) -> bool:
        """Whether the program has the user's present hyperparameters."""
        return self.device is None or self.users is None or not self.device.differs_from(self.users)

    @property
    def loss_scaling(self) -> float:
        """Factor of the loss in the next update."""
        if self.scaling is not None:
            return self.scaling.scaling
        return self.device.loss_scaling if self.device is not None else 1.0

    def _connect(self) -> None:
        if isinstance(self.users, Optimizer) and self.device is not None:
            self.users.connect(self._export)

    def _export(self) -> State:
        assert self.device is not None
        self.load_pending_state()
        state, whole = self.device.export()
        if self.scaling is not None:
            whole["loss_scaling"] = self.scaling.scaling
        return state, whole
