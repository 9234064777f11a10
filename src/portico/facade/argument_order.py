"""Arguments given by position in the order of ``transformers`` 4."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from portico.errors import InputTypeError

_ADVICE = "transformers 5 takes `compute_loss_func` before `compute_metrics`; give these and the rest by keyword."


def refuse_old_order(compute_loss_func: Callable[..., Any] | None, compute_metrics: Any) -> None:
    """Refuse what can only be meant for another parameter, before a training fails on it.

    Args:
        compute_loss_func: Given as such; ``compute_metrics`` had its position.
        compute_metrics: Given as such; ``callbacks`` had its position.

    Raises:
        InputTypeError: Says which arguments to give by keyword.
    """
    if isinstance(compute_metrics, list):
        raise InputTypeError(f"`compute_metrics` is a list, as `callbacks` are: {_ADVICE}")
    if compute_loss_func is not None and not _takes_a_batch(compute_loss_func):
        raise InputTypeError(
            f"`compute_loss_func` cannot be called with `(outputs, labels, num_items_in_batch=...)`: {_ADVICE}"
        )


def _takes_a_batch(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some functions written in C have none.
        return True
    try:
        signature.bind(None, None, num_items_in_batch=None)
    except TypeError:
        return False
    return True


def taking_a_norm_or_none(hook: Callable[..., None]) -> Callable[..., None]:
    """Make ``hook(self, tr_loss, grad_norm, model, ...)`` callable in the order before there was ``grad_norm``.

    That is how overrides for transformers up to 4.37 call it through ``super()``; the present run has the norm.
    """

    @functools.wraps(hook)
    def in_either_order(self: Any, tr_loss: Any, *args: Any, **kwargs: Any) -> None:
        if "grad_norm" not in kwargs and (not args or isinstance(args[0], nn.Module)):
            args = (self.module.run.grad_norm, *args)
        hook(self, tr_loss, *args, **kwargs)

    return in_either_order
