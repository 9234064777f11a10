"""Stochastic gradient descent."""

from typing import Any

import torch

from portico.ipu.emulator.optim.optimizer import Optimizer


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with momentum.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        momentum: Share of the velocity that stays.
        dampening: Share of the gradient that is left out of the velocity.
        weight_decay: L2 penalty.
        nesterov: Look ahead along the velocity.
        maximize: Must be false.
        foreach: Without effect.
        differentiable: Must be false.
        loss_scaling: Factor of the loss.
        velocity_scaling: Kept; it matters to half-precision velocities of real devices only.
        use_combined_accum: Kept; gradient and velocity share memory on real devices.
        accum_type: Format of gradient accumulators.
        velocity_accum_type: Format of the velocity.
        max_grad_norm: Norm to clip gradients to.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool = False,
        foreach: bool = False,
        differentiable: bool = False,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool = False,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        if maximize or differentiable:
            raise ValueError("`maximize` and `differentiable` are not supported on IPUs; leave them out.")
        if use_combined_accum and (accum_type is not None or velocity_accum_type is not None):
            raise ValueError("`use_combined_accum=True` leaves no accumulators to choose types for; leave one out.")
        self.use_combined_accum = use_combined_accum
        self.velocity_scaling = 1.0 if velocity_scaling is None else velocity_scaling
        passed = self._take_options(
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "velocity_scaling": velocity_scaling,
            },
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            max_grad_norm=max_grad_norm,
            velocity_accum_type=velocity_accum_type,
        )
        passed.pop("velocity_scaling", None)
        torch.optim.SGD.__init__(self, params, **passed)
