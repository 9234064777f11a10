"""Which ATen operators are taken apart before they are lowered."""

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.randomness import native_dropout

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions into core operators, less those of operators that have a lowering."""
    table = dict(core_aten_decompositions())
    table |= get_decompositions([aten.nll_loss_forward, aten.nll_loss_backward, aten.addcmul, aten.tril, aten.triu])
    table[aten.native_dropout.default] = native_dropout
    return {target: decomposition for target, decomposition in table.items() if target not in LOWERINGS}
