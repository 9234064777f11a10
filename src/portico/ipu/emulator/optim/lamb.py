"""LAMB."""

from typing import Any

import torch

from portico.ipu.emulator.optim.optimizer import Optimizer
from portico.ipu.emulator.optim.rules import LambRule
from portico.optim import ParameterwiseOptimizer

_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "max_weight_norm": 65500.0}
_RULE = LambRule()


class LAMB(Optimizer, ParameterwiseOptimizer):
    """Adam whose steps are scaled, weight by weight, to the norm of the weight.

    Args:
        params: Parameters or groups.
        lr: Learning rate, 1e-3 by default; constant unless passed.
        betas: Decay of both moments.
        eps: Added to the denominator.
        weight_decay: Added to the step, times the weight.
        bias_correction: Correct the moments for their start at zero.
        loss_scaling: Factor of the loss.
        max_weight_norm: Norms of weights are cut here; 65500 by default, 0 leaves the steps unscaled.
        accum_type: Format of gradient accumulators.
        first_order_momentum_accum_type: Format of the first moment.
        second_order_momentum_accum_type: Format of the second moment.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool = True,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
    ) -> None:
        passed = self._take_options(
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_weight_norm": max_weight_norm},
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        options = {**_DEFAULTS, **passed}
        for name in ("lr", "eps", "weight_decay", "max_weight_norm"):
            if options[name] < 0:
                raise ValueError(f"Invalid {name}: {options[name]} is negative; use a number of at least 0.")
        if not all(0.0 <= beta < 1.0 for beta in options["betas"]):
            raise ValueError(f"Invalid betas: {options['betas']}; both have to be at least 0 and less than 1.")
        self.bias_correction = bias_correction
        super().__init__(params, {**options, "bias_correction": bias_correction})

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        assert parameter.grad is not None
        _RULE.update(parameter, parameter.grad, state, group, state["step"])
