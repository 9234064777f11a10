"""Dropout whose masks torch draws, in the order and the form in which eager mode draws them."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import torch

_draws = count()


@torch.library.custom_op(
    "portico_ort::keep_mask",
    mutates_args=(),
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.needs_fixed_stride_order),
)
def keep_mask(size: Sequence[int], p: float, device: torch.device, draw: int) -> torch.Tensor:
    """Draw which elements a dropout keeps.

    Args:
        size: Shape of what is dropped from.
        p: Probability of dropping an element.
        device: Whose random generator draws.
        draw: A number of its own for each use: torch merges calls with equal arguments into one.

    Returns:
        bool tensor of that shape, true with probability ``1 - p``.
    """
    return torch.empty(size, dtype=torch.bool, device=device).bernoulli_(1 - p)


@keep_mask.register_fake
def _(size: Sequence[int], p: float, device: torch.device, draw: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.bool, device=device)


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose dropout into a drawn mask and a product."""
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    kept = torch.ops.portico_ort.keep_mask(list(x.shape), p, x.device, next(_draws))
    return torch.where(kept, x * _scale(p), 0.0), kept


def native_dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Decompose the derivative of dropout."""
    return torch.where(mask, grad * scale, 0.0)


def _scale(p: float) -> Any:
    # Eager mode divides float32 ones by 1 - p: the factor rounded to double first would differ in the last bit.
    return float(np.float32(1) / np.float32(1 - p))
