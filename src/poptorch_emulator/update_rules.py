"""How a gradient changes a weight: one class per optimizer of the device.

State is kept in its declared formats; arithmetic is in single precision or better.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

State = dict[str, Any]
Group = Mapping[str, Any]


class UpdateRule(ABC):
    """Updates one weight from its gradient; ``state_types`` are formats of its state, by default the arithmetic's."""

    hyperparameters: ClassVar[tuple[str, ...]] = ("lr", "betas", "eps", "weight_decay")

    def __init__(self, state_types: Mapping[str, torch.dtype | None]) -> None:
        self._state_types = state_types

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        """Change ``weight`` and ``state``, which the first update fills, in place; ``step`` counts updates from 1."""
        wide = torch.promote_types(weight.dtype, torch.float32)
        target = weight.to(wide)
        if not state.keys() - {"step"}:
            state |= self._new_state(target, group)
        working = {name: value.to(wide) for name, value in state.items() if name != "step"}
        self._apply(target, gradient.to(wide), working, group, step)
        for name, value in working.items():
            if state[name] is not value:
                state[name].copy_(value)
        if target is not weight:
            weight.copy_(target)

    def _new_state(self, weight: Tensor, group: Group) -> State:
        return {
            name: torch.zeros_like(
                weight, dtype=self._state_types.get(name) or weight.dtype, memory_format=torch.preserve_format
            )
            for name in self._state_names(group)
        }

    def _state_names(self, group: Group) -> list[str]:
        return ["exp_avg", "exp_avg_sq"]

    @abstractmethod
    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None: ...


class SgdRule(UpdateRule):
    hyperparameters = ("lr", "weight_decay", "momentum", "dampening")

    def _state_names(self, group: Group) -> list[str]:
        return ["momentum_buffer"] if group["momentum"] else []

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        gradient = _apply_weight_decay(weight, gradient, group)
        if group["momentum"]:
            velocity = state["momentum_buffer"]
            damping = group["dampening"] if step > 1 else 0.0
            velocity.mul_(group["momentum"]).add_(gradient, alpha=1 - damping)
            gradient = velocity
        weight.add_(gradient, alpha=-group["lr"])


class AdamRule(UpdateRule):
    """Adam, which adds weight decay to the gradient, or AdamW, which decays the weight; both correct the bias."""

    def __init__(self, state_types: Mapping[str, torch.dtype | None], *, decoupled: bool) -> None:
        super().__init__(state_types)
        self._decoupled = decoupled

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        lr = group["lr"]
        if self._decoupled:
            if group["weight_decay"]:
                weight.mul_(1 - lr * group["weight_decay"])
        else:
            gradient = _apply_weight_decay(weight, gradient, group)
        first, second = _moments(gradient, state, group)
        beta1, beta2 = group["betas"]
        denominator = (second.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        weight.addcdiv_(first, denominator, value=-lr / (1 - beta1**step))


class LambRule(UpdateRule):
    """Adam steps scaled to the norm of the weight; the group says whether the bias is corrected."""

    hyperparameters = (*UpdateRule.hyperparameters, "max_weight_norm", "bias_correction")

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        first, second = _moments(gradient, state, group)
        if group["bias_correction"]:
            beta1, beta2 = group["betas"]
            first = first / (1 - beta1**step)
            second = second / (1 - beta2**step)
        move = _apply_weight_decay(weight, first / (second.sqrt() + group["eps"]), group)
        weight_norm = weight.norm().clamp(max=group["max_weight_norm"])
        ratio = torch.where((weight_norm > 0) & (move.norm() > 0), weight_norm / move.norm(), 1.0)
        weight.sub_(group["lr"] * ratio * move)


class RmspropRule(UpdateRule):
    """RMSprop as torch computes it."""

    hyperparameters = ("lr", "eps", "weight_decay", "momentum", "alpha", "centered")

    def _state_names(self, group: Group) -> list[str]:
        names = ["square_avg", *(["momentum_buffer"] if group["momentum"] else [])]
        return [*names, *(["grad_avg"] if group["centered"] else [])]

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        gradient = _apply_weight_decay(weight, gradient, group)
        denominator = self._mean_square(gradient, state, group).sqrt().add_(group["eps"])
        if group["momentum"]:
            velocity = state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(gradient, denominator)
            weight.add_(velocity, alpha=-group["lr"])
        else:
            weight.addcdiv_(gradient, denominator, value=-group["lr"])

    def _mean_square(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        square: Tensor = state["square_avg"]
        square.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
        if not group["centered"]:
            return square
        mean = state["grad_avg"].lerp_(gradient, 1 - group["alpha"])
        return square.addcmul(mean, mean, value=-1)


class TensorflowRmspropRule(RmspropRule):
    """RMSprop as TensorFlow computes it: mean squares start at one, and the velocity includes the learning rate."""

    def _new_state(self, weight: Tensor, group: Group) -> State:
        state = super()._new_state(weight, group)
        state["square_avg"].fill_(1.0)
        return state

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        gradient = _apply_weight_decay(weight, gradient, group)
        denominator = self._mean_square(gradient, state, group).add(group["eps"]).sqrt_()
        move = group["lr"] * gradient / denominator
        if group["momentum"]:
            move = state["momentum_buffer"].mul_(group["momentum"]).add_(move)
        weight.sub_(move)


def _apply_weight_decay(weight: Tensor, gradient: Tensor, group: Group) -> Tensor:
    return gradient.add(weight, alpha=group["weight_decay"]) if group["weight_decay"] else gradient


def _moments(gradient: Tensor, state: State, group: Group) -> tuple[Tensor, Tensor]:
    beta1, beta2 = group["betas"]
    first = state["exp_avg"].lerp_(gradient, 1 - beta1)
    second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    return first, second
