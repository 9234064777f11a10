"""How a gradient changes a weight: one class for each optimizer of the device.

State is kept in the formats it was declared with; arithmetic is in single precision or better.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]
Group = Mapping[str, Any]


class UpdateRule(ABC):
    """Updates one weight from its gradient.

    Args:
        state_types: Format of each state tensor, where it is not that of the arithmetic.
    """

    def __init__(self, state_types: Mapping[str, torch.dtype | None] | None = None) -> None:
        self._state_types = dict(state_types or {})

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        """Change ``weight`` and its ``state`` in place.

        Args:
            weight: The weight, of any floating format.
            gradient: Its gradient, unscaled; same shape.
            state: State of this weight; filled at the first update.
            group: Hyperparameters.
            step: Number of this update, from 1.
        """
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

    def _zeros(self, weight: Tensor, *names: str) -> State:
        return {
            name: torch.zeros_like(
                weight, dtype=self._state_types.get(name) or weight.dtype, memory_format=torch.preserve_format
            )
            for name in names
        }

    @abstractmethod
    def _new_state(self, weight: Tensor, group: Group) -> State: ...

    @abstractmethod
    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None: ...


class SgdRule(UpdateRule):
    """Gradient descent with momentum."""

    def _new_state(self, weight: Tensor, group: Group) -> State:
        return self._zeros(weight, "momentum_buffer") if group["momentum"] else {}

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        if group["weight_decay"]:
            gradient = gradient.add(weight, alpha=group["weight_decay"])
        if group["momentum"]:
            velocity = state["momentum_buffer"]
            damping = group["dampening"] if step > 1 else 0.0
            velocity.mul_(group["momentum"]).add_(gradient, alpha=1 - damping)
            gradient = gradient.add(velocity, alpha=group["momentum"]) if group["nesterov"] else velocity
        weight.add_(gradient, alpha=-group["lr"])


class AdamRule(UpdateRule):
    """Adam, with weight decay in the gradient or, decoupled, beside it. The bias is always corrected.

    Args:
        state_types: Formats of the moments.
        decoupled: Whether weight decay is left out of the moments.
    """

    def __init__(self, state_types: Mapping[str, torch.dtype | None] | None = None, *, decoupled: bool) -> None:
        super().__init__(state_types)
        self._decoupled = decoupled

    def _new_state(self, weight: Tensor, group: Group) -> State:
        return self._zeros(weight, "exp_avg", "exp_avg_sq")

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        decay, lr = group["weight_decay"], group["lr"]
        if decay and self._decoupled:
            weight.mul_(1 - lr * decay)
        elif decay:
            gradient = gradient.add(weight, alpha=decay)
        first, second = _moments(gradient, state, group)
        beta1, beta2 = group["betas"]
        denominator = (second.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        weight.addcdiv_(first, denominator, value=-lr / (1 - beta1**step))


class LambRule(UpdateRule):
    """Adam steps scaled to the norm of the weight; the bias is corrected if the group says so."""

    def _new_state(self, weight: Tensor, group: Group) -> State:
        return self._zeros(weight, "exp_avg", "exp_avg_sq")

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        first, second = _moments(gradient, state, group)
        if group["bias_correction"]:
            beta1, beta2 = group["betas"]
            first, second = first / (1 - beta1**step), second / (1 - beta2**step)
        move = first / (second.sqrt() + group["eps"])
        if group["weight_decay"]:
            move = move.add(weight, alpha=group["weight_decay"])
        weight_norm = weight.norm().clamp(max=group["max_weight_norm"])
        ratio = torch.where((weight_norm > 0) & (move.norm() > 0), weight_norm / move.norm(), 1.0)
        weight.sub_(group["lr"] * ratio * move)


class RmspropRule(UpdateRule):
    """RMSprop as torch computes it."""

    def _new_state(self, weight: Tensor, group: Group) -> State:
        names = ["square_avg", *(["momentum_buffer"] if group["momentum"] else [])]
        return self._zeros(weight, *names, *(["grad_avg"] if group["centered"] else []))

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        denominator = self._mean_square(weight, gradient, state, group).sqrt().add_(group["eps"])
        if group["momentum"]:
            velocity = state["momentum_buffer"].mul_(group["momentum"])
            velocity.addcdiv_(self._decayed(weight, gradient, group), denominator)
            weight.add_(velocity, alpha=-group["lr"])
        else:
            weight.addcdiv_(self._decayed(weight, gradient, group), denominator, value=-group["lr"])

    def _decayed(self, weight: Tensor, gradient: Tensor, group: Group) -> Tensor:
        return gradient.add(weight, alpha=group["weight_decay"]) if group["weight_decay"] else gradient

    def _mean_square(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> Tensor:
        gradient = self._decayed(weight, gradient, group)
        square: Tensor = state["square_avg"]
        square.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
        if not group["centered"]:
            return square
        mean = state["grad_avg"].lerp_(gradient, 1 - group["alpha"])
        return square.addcmul(mean, mean, value=-1)


class TensorflowRmspropRule(RmspropRule):
    """RMSprop as TensorFlow computes it: mean squares start at one, and the velocity holds the learning rate."""

    def _new_state(self, weight: Tensor, group: Group) -> State:
        state = super()._new_state(weight, group)
        state["square_avg"].fill_(1.0)
        return state

    def _apply(self, weight: Tensor, gradient: Tensor, state: State, group: Group, step: int) -> None:
        denominator = self._mean_square(weight, gradient, state, group).add(group["eps"]).sqrt_()
        move = group["lr"] * self._decayed(weight, gradient, group) / denominator
        if group["momentum"]:
            move = state["momentum_buffer"].mul_(group["momentum"]).add_(move)
        weight.sub_(move)


def _moments(gradient: Tensor, state: State, group: Group) -> tuple[Tensor, Tensor]:
    beta1, beta2 = group["betas"]
    first = state["exp_avg"].lerp_(gradient, 1 - beta1)
    second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    return first, second
