"""Dropout whose random numbers torch draws, in the order and the form in which eager mode draws them."""

from collections.abc import Sequence
from itertools import count

import torch
from torch import fx
from torch._prims.rng_prims import run_with_rng_state

_draws = count()


@torch.library.custom_op(
    "portico_ort::dropout_noise",
    mutates_args=(),
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.needs_fixed_stride_order),
)
def dropout_noise(
    size: Sequence[int], p: float, dtype: torch.dtype, *, device: torch.device, draw: int
) -> torch.Tensor:
    """Draw what a dropout multiplies with.

    Torch finds the random generator of an operator that it draws from again, for activation checkpointing, by the
    keyword ``device``.

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
def _(size: Sequence[int], p: float, dtype: torch.dtype, *, device: torch.device, draw: int) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose dropout into drawn noise and a product; the mask tells, as torch's does, what is kept."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    noise = torch.ops.portico_ort.dropout_noise(list(x.shape), p, x.dtype, device=x.device, draw=next(_draws))
    return x * noise, noise != 0


def multiply_gradients_with_noise(joint: fx.Graph) -> None:
    """Let the derivative of each dropout in a joint graph be a product with its noise.

    Eager mode keeps the noise as well, and a product is faster than a choice by the mask.
    """
    for node in joint.find_nodes(op="call_function", target=torch.ops.aten.native_dropout_backward.default):
        grad, mask, scale = node.args
        noise = mask.args[0] if mask.target is torch.ops.aten.ne.Scalar else mask
        if noise.target is not torch.ops.portico_ort.dropout_noise.default or scale != 1 / (1 - noise.args[1]):
            continue
        with joint.inserting_before(node):
            product = joint.call_function(torch.ops.aten.mul.Tensor, (grad, noise))
        product.meta = dict(node.meta)
        node.replace_all_uses_with(product)
        joint.erase_node(node)


def describe_redrawn_noise(joint: fx.Graph, backward: fx.Graph) -> None:
    """Give the noise that a backward graph draws again, for activation checkpointing, the metadata that torch drops.

    Such noise is drawn from the state that the random generator had in the forward.
    """
    drawn = joint.find_nodes(op="call_function", target=torch.ops.portico_ort.dropout_noise.default)
    metadata = {node.kwargs["draw"]: node.meta for node in drawn}
    for node in backward.find_nodes(op="call_function", target=run_with_rng_state):
        if "draw" in node.kwargs:
            node.meta = dict(metadata[node.kwargs["draw"]])
