"""Which ATen operators are taken apart before they are lowered."""

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.randomness import native_dropout, native_dropout_backward

aten = torch.ops.aten
# Beside those of torch's list, which counts some of them among the core operators.
_TAKEN_APART = (
    aten._adaptive_avg_pool2d,
    aten.linalg_vector_norm,
    aten.native_group_norm,
    aten.new_empty_strided,
    aten.nll_loss_backward,
    aten.nll_loss_forward,
    aten.tril,
    aten.triu,
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions into core operators, less those of operators that have a lowering."""
    table = dict(core_aten_decompositions())
    table |= get_decompositions(_TAKEN_APART)
    table[aten.native_dropout.default] = native_dropout
    table[aten.native_dropout_backward.default] = native_dropout_backward
    return {target: decomposition for target, decomposition in table.items() if target not in LOWERINGS}
