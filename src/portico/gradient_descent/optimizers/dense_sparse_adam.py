"""Adam for a model in which only some gradients are sparse."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from portico.gradient_descent.errors import ConfigurationError
from portico.optim import ParameterwiseOptimizer


class DenseSparseAdam(ParameterwiseOptimizer):
    """Adam that leaves the moments of rows without a gradient alone, where a gradient is sparse.

    A dense gradient is treated as by Adam, a sparse one as by ``torch.optim.SparseAdam``; which it is shows at each
    step. In both, ``eps`` is added before the bias is corrected.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the two moments, each in ``[0, 1)``.
        eps: Added to the denominator.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        if not (lr > 0 and eps > 0 and all(0 <= beta < 1 for beta in betas)):
            raise ConfigurationError(
                f"DenseSparseAdam got `lr={lr}`, `betas={tuple(betas)}`, `eps={eps}`; set `lr` and `eps` above 0 and "
                "both betas to 0 or more and below 1."
            )
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps})

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        step_size = group["lr"] * math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            # A row may occur more than once.
            rows = gradient.coalesce()
            first = _move_rows(state["exp_avg"], rows, rows.values(), beta1)
            second = _move_rows(state["exp_avg_sq"], rows, rows.values().pow(2), beta2)
            change = -step_size * (first / second.sqrt().add_(group["eps"]))
            parameter.add_(_with_values(rows, change))
        else:
            first = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
            second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            parameter.addcdiv_(first, second.sqrt().add_(group["eps"]), value=-step_size)


def _move_rows(moment: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, beta: float) -> torch.Tensor:
    """Move the rows of ``moment`` that the sparse tensor ``rows`` has towards ``values``, and return these rows."""
    before = moment.sparse_mask(rows).values()
    change = (values - before) * (1 - beta)
    moment.add_(_with_values(rows, change))
    return before + change


def _with_values(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor with the rows of ``rows`` and other values."""
    return torch.sparse_coo_tensor(rows.indices(), values, rows.shape, is_coalesced=True, check_invariants=False)
