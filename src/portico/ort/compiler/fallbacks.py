"""Operators without a lowering: they run in torch, and somebody is told."""

import logging
from typing import Any

import torch
from torch import fx

from portico.errors import InputError
from portico.ort.compiler.partition import FREE_VIEWS
from portico.ort.report import Fallback, Report

logger = logging.getLogger(__name__)

# They run in torch on purpose: random numbers as eager mode draws them, and what costs nothing there.
_AT_HOME = {torch.ops.portico_ort.dropout_mask.default, torch.ops.aten.sym_size.int, *FREE_VIEWS}


def run_in_torch(module: fx.GraphModule, *, strict: bool, report: Report) -> None:
    """Count and time the operators of ``module`` that stayed outside ONNX Runtime; ``module`` is changed.

    Raises:
        InputError: If there is one and ``strict`` allows none.
    """
    left = [node for node in module.graph.nodes if _is_fallback(node)]
    names = sorted({str(node.target) for node in left})
    if names and strict:
        raise InputError(
            f"`strict=True`, but the model uses {', '.join(names)}, which portico cannot lower to ONNX for these "
            "tensors; leave `strict` out to run this part in torch, or change the model."
        )
    for name in names:
        if name not in report.fallbacks:
            logger.warning("%s has no lowering to ONNX for these tensors; it runs in torch.", name)
    for index, node in enumerate(left):
        fallback = report.fallback(str(node.target))
        fallback.num_nodes += 1
        name = f"fallback_{index}"
        setattr(module, name, _Timed(node.target, fallback))
        node.op, node.target = "call_module", name


def _is_fallback(node: fx.Node) -> bool:
    return (
        node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and node.target not in _AT_HOME
    )


class _Timed(torch.nn.Module):
    """An operator whose calls are counted."""

    def __init__(self, operator: Any, record: Fallback) -> None:
        super().__init__()
        self._operator = operator
        self._record = record

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._record.timed(self._operator, *args, **kwargs)
