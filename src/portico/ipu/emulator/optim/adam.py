"""Adam and AdamW."""

from typing import Any

import torch

from portico.ipu.emulator.optim.optimizer import Optimizer, refuse_amsgrad


class Adam(Optimizer, torch.optim.Adam):
    """Adam; weight decay goes into the gradient.

    Args:
        params: Parameters or groups.
        lr: Learning rate, 1e-3 by default; constant unless passed.
        betas: Decay of both moments.
        eps: Added to the denominator.
        weight_decay: L2 penalty.
        amsgrad: Must be false.
        loss_scaling: Factor of the loss.
        accum_type: Format of gradient accumulators.
        first_order_momentum_accum_type: Format of the first moment.
        second_order_momentum_accum_type: Format of the second moment.
        max_grad_norm: Norm to clip gradients to.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        refuse_amsgrad(amsgrad)
        passed = self._take_options(
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad},
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            max_grad_norm=max_grad_norm,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        torch.optim.Adam.__init__(self, params, **passed)


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with weight decay beside the gradient.

    Args:
        params: Parameters or groups.
        lr: Learning rate, 1e-3 by default; constant unless passed.
        betas: Decay of both moments.
        eps: Added to the denominator.
        weight_decay: Share of the weights taken off, times the learning rate; 0.01 by default.
        amsgrad: Must be false.
        loss_scaling: Factor of the loss.
        bias_correction: Without effect: real devices correct the bias always, and so does the emulator.
        accum_type: Format of gradient accumulators.
        first_order_momentum_accum_type: Format of the first moment.
        second_order_momentum_accum_type: Format of the second moment.
        max_grad_norm: Norm to clip gradients to.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool = True,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        refuse_amsgrad(amsgrad)
        self.bias_correction = bias_correction
        passed = self._take_options(
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad},
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            max_grad_norm=max_grad_norm,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        torch.optim.AdamW.__init__(self, params, **passed)
