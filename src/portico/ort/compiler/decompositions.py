"""Decompositions into operators that have lowerings; dropout among them, whose random numbers torch draws."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import fx

from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.translation import memory_order
from portico.ort.torch_compat import core_aten_decompositions, get_decompositions, run_with_rng_state

_draws = count()


@torch.library.custom_op(
    "portico_ort::dropout_mask",
    mutates_args=(),
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.needs_fixed_stride_order),
)
def dropout_mask(size: Sequence[int], p: float, *, device: torch.device, draw: int) -> torch.Tensor:
    """Draw which elements a dropout keeps, as booleans: eager mode saves floats, which take four times the memory.

    Args:
        size: Shape of the tensor.
        p: Probability of dropping an element.
        device: Whose random generator draws; torch finds it by this keyword to repeat a draw (checkpointing).
        draw: Unique for each use: torch merges calls with equal arguments.
    """
    return torch.empty(size, dtype=torch.bool, device=device).bernoulli_(1 - p)


@dropout_mask.register_fake
def _(size: Sequence[int], p: float, *, device: torch.device, draw: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.bool, device=device)


DROPOUT_MASK = torch.ops.portico_ort.dropout_mask.default


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose dropout into drawing a mask, which is returned like torch's, and a product."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    # In the memory order of eager mode's noise.
    order = memory_order(torch.empty_like(x))
    size = x.shape if order is None else [x.shape[axis] for axis in order]
    mask = torch.ops.portico_ort.dropout_mask(list(size), p, device=x.device, draw=next(_draws))
    if order is not None:
        mask = mask.permute([order.index(axis) for axis in range(x.dim())])
    return x * _noise(mask, 1 / (1 - p), x.dtype), mask


def native_dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    if scale == 0:
        return torch.zeros_like(grad)
    return grad * _noise(mask, scale, grad.dtype)


def _noise(mask: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Return 0 for dropped and ``scale`` for kept elements, rounded like the division of eager mode."""
    computed_in = torch.float64 if dtype is torch.float64 else torch.float32
    return (mask.to(computed_in) / (1 / scale)).to(dtype)


def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Decompose a histogram into a sum by index; an extra bin for values out of range is cut off."""
    if min == max:
        return NotImplemented  # The elements determine the range.
    index = ((x - min) * bins / (max - min)).to(torch.int64).clamp(max=bins - 1)
    index = torch.where((x >= min) & (x <= max), index, bins).reshape(-1)
    return x.new_zeros(bins + 1).scatter_add(0, index, torch.ones_like(index, dtype=x.dtype))[:bins]


def describe_redrawn_masks(joint: fx.Graph, backward: fx.Graph) -> None:
    """Restore the metadata, which torch drops, of masks that activation checkpointing draws again in the backward."""
    drawn = joint.find_nodes(op="call_function", target=DROPOUT_MASK)
    metadata = {node.kwargs["draw"]: node.meta for node in drawn}
    for node in backward.find_nodes(op="call_function", target=run_with_rng_state):
        if "draw" in node.kwargs:
            node.meta = dict(metadata[node.kwargs["draw"]])


aten = torch.ops.aten
# Their kernels in torch are fused or blocked for the caches. ONNX Runtime blocks convolutions with constant weights
# only, and has no derivatives and no statistics of a batch: compositions of its operators take 1.1 to 4 times as long.
FASTER_IN_TORCH = {
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten.native_batch_norm_backward.default,
}
# Torch's list of core decompositions lacks these, some of which it counts as core operators.
_FURTHER = (
    aten._adaptive_avg_pool2d,
    aten.hardtanh,
    aten.linalg_vector_norm,
    aten.native_group_norm,
    aten.new_empty_strided,
    aten.nll_loss_backward,
    aten.nll_loss_forward,
    aten.tril,
    aten.triu,
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions into core operators, except for operators that are run as they are."""
    table = dict(core_aten_decompositions()) | get_decompositions(_FURTHER)
    table[aten.histc.default] = histc
    table[aten.native_dropout.default] = native_dropout
    table[aten.native_dropout_backward.default] = native_dropout_backward
    kept = LOWERINGS.keys() | FASTER_IN_TORCH
    return {target: decomposition for target, decomposition in table.items() if target not in kept}
