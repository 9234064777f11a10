"""Dropout whose random numbers torch draws, in the order and the form in which eager mode draws them."""

from collections.abc import Sequence
from itertools import count

import torch

_draws = count()


@torch.library.custom_op(
    "portico_ort::dropout_noise",
    mutates_args=(),
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.needs_fixed_stride_order),
)
def dropout_noise(size: Sequence[int], p: float, dtype: torch.dtype, device: torch.device, draw: int) -> torch.Tensor:
    """Draw what a dropout multiplies with.

    Args:
        size: Shape of what is dropped from.
        p: Probability of dropping an element.
        dtype: Dtype of what is dropped from.
        device: Whose random generator draws.
        draw: A number of its own for each use: torch merges calls with equal arguments into one.

    Returns:
        Tensor of that shape: 0 with probability ``p``, or else ``1 / (1 - p)``.
    """
    return torch.empty(size, dtype=dtype, device=device).bernoulli_(1 - p).div_(1 - p)


@dropout_noise.register_fake
def _(size: Sequence[int], p: float, dtype: torch.dtype, device: torch.device, draw: int) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose dropout into drawn noise and a product.

    The noise stands in the place of the mask, which :func:`native_dropout_backward` alone reads: eager mode keeps the
    noise as well, and a product is faster than a choice by a mask.
    """
    if not train or p == 0:
        return x.clone(), torch.ones_like(x)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x)
    noise = torch.ops.portico_ort.dropout_noise(list(x.shape), p, x.dtype, x.device, next(_draws))
    return x * noise, noise


def native_dropout_backward(grad: torch.Tensor, noise: torch.Tensor, scale: float) -> torch.Tensor:
    """Decompose the derivative of dropout; the noise has the scale in it."""
    return grad * noise
