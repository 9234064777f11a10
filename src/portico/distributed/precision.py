"""Mixed precision as in transformers: the model's forward casts, and nothing around it does.

:func:`autocast_forward` is accelerate's ``Accelerator.prepare_model``: autocast inside ``forward``, float32 outputs.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec

import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from portico.compat.transformers import HFTrainingArguments
from portico.compat.tree import map_tensors

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy


P = ParamSpec("P")
_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_CASTS = "_casts_to_mixed_precision"


@contextmanager
def autocast_forward(model: nn.Module, strategy: "Strategy") -> Iterator[None]:
    """Inside the block, run the forward of ``model`` in the mixed precision of ``strategy`` and return ``float32``.

    Lightning casts whole steps, so a loss that the user computes would be in half precision. Nothing changes without
    mixed precision, or if the forward casts already.
    """
    plugin = strategy.precision_plugin
    plain_forward = model.forward
    if not isinstance(plugin, MixedPrecision) or hasattr(plain_forward, _CASTS):
        yield
        return
    replaced = model.__dict__.get("forward")
    # A bound method is rebound by a deep copy of the model; a closure would call the original.
    casting = _wrap_in_autocast(getattr(plain_forward, "__func__", plain_forward), plugin)
    model.forward = MethodType(casting, model) if hasattr(plain_forward, "__func__") else casting
    try:
        yield
    finally:
        del model.forward
        if replaced is not None:
            model.forward = replaced


def disabling_autocast(strategy: "Strategy") -> AbstractContextManager[Any]:
    """Return a context that disables the autocast that Lightning puts around a whole step."""
    plugin = strategy.precision_plugin
    if isinstance(plugin, MixedPrecision) and torch.is_autocast_enabled(plugin.device):
        return torch.autocast(plugin.device, enabled=False)
    return nullcontext()


def _wrap_in_autocast(forward: Callable[P, object], plugin: MixedPrecision) -> Callable[P, Any]:
    @functools.wraps(forward)
    def cast(*args: P.args, **kwargs: P.kwargs) -> Any:
        # Lightning's context disables the cache and casts a weight at each use, so gradients of a weight used twice
        # are summed in another precision. The cache is cleared after the forward, since weights may change.
        with torch.autocast(plugin.device, dtype=_DTYPES[plugin.precision], cache_enabled=True):
            outputs = forward(*args, **kwargs)
        torch.clear_autocast_cache()
        return map_tensors(lambda tensor: tensor.float() if tensor.dtype in _DTYPES.values() else tensor, outputs)

    setattr(cast, _CASTS, True)
    return cast


def full_evaluation_dtype(args: HFTrainingArguments) -> torch.dtype | None:
    """Return the precision of evaluations under ``bf16_full_eval`` or ``fp16_full_eval``, ``None`` without them."""
    if args.fp16_full_eval:
        return torch.float16
    return torch.bfloat16 if args.bf16_full_eval else None
