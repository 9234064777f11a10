"""The optimizer inside a compiled program."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portico.ipu.emulator import optim
from portico.ipu.emulator.device.gradients import Gradients
from portico.ipu.emulator.device.update import rule_of
from portico.ipu.emulator.errors import Error

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
        """Return whether the user's optimizer says something else than what was compiled or last taken."""
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
