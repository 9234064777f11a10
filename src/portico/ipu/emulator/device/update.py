"""Which rule a device updates weights by."""

import torch

from portico.ipu.emulator import optim
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.optim.rules import (
    AdamRule,
    LambRule,
    RmspropRule,
    SgdRule,
    TensorflowRmspropRule,
    UpdateRule,
)


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
