"""Gradients measured, rescaled and clipped."""

import torch
from torch import nn


def rescale_gradients(model: nn.Module, grad_norm: float | bool | None) -> float | None:
    """Scale the gradients of ``model`` down to a norm of ``grad_norm``, and return the norm they had.

    Args:
        model: Whose parameters are looked at, those without a gradient aside.
        grad_norm: Largest norm; ``True`` only measures, ``False`` or ``None`` does nothing.
    """
    if not grad_norm:
        return None
    parameters = _with_gradients(model)
    if grad_norm is True:
        return torch.nn.utils.get_total_norm([_gradient(parameter) for parameter in parameters]).item()
    return torch.nn.utils.clip_grad_norm_(parameters, grad_norm).item()


def clip_gradients(model: nn.Module, grad_clipping: float | None) -> None:
    """Clamp every component of the gradients of ``model`` to ``[-grad_clipping, grad_clipping]``."""
    if grad_clipping is not None:
        torch.nn.utils.clip_grad_value_(_with_gradients(model), grad_clipping)


def _with_gradients(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.grad is not None]


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
