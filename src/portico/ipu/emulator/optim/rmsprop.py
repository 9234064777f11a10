"""RMSprop."""

from typing import Any

import torch

from portico.ipu.emulator.optim.optimizer import Optimizer


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop, as torch or as TensorFlow computes it.

    Args:
        params: Parameters or groups.
        lr: Learning rate, 1e-2 by default; constant unless passed.
        alpha: Decay of the mean square.
        eps: Added to the denominator; inside the root in TensorFlow's variant.
        weight_decay: L2 penalty.
        momentum: Share of the velocity that stays.
        centered: Divide by the standard deviation.
        loss_scaling: Factor of the loss.
        accum_type: Format of gradient accumulators.
        first_order_momentum_accum_type: Format of velocity and mean gradient.
        second_order_momentum_accum_type: Format of the mean square.
        use_tf_variant: Compute as TensorFlow.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        use_tf_variant: bool = False,
    ) -> None:
        self.use_tf_variant = use_tf_variant
        passed = self._take_options(
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
            },
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        torch.optim.RMSprop.__init__(self, params, **passed)
