"""Element-wise comparisons, logical operators and selection by a mask."""

from functools import partial
from typing import Any

import torch

from portico.ort.compiler.graph import Value
from portico.ort.compiler.lowerings.creation import filled_like
from portico.ort.compiler.lowerings.registry import Context, common_dtype, lowers, promoted

aten = torch.ops.aten

_COMPARISONS = {
    aten.eq: "Equal",
    aten.ge: "GreaterOrEqual",
    aten.gt: "Greater",
    aten.le: "LessOrEqual",
    aten.lt: "Less",
}
_LOGICAL = {
    aten.logical_and.default: "And",
    aten.logical_or.default: "Or",
    aten.logical_xor.default: "Xor",
}


def _compared(context: Context, x: Any, y: Any, *, op_type: str) -> Value:
    dtype = common_dtype(x, y)
    # ONNX orders no booleans.
    if dtype is torch.bool and op_type != "Equal":
        dtype = torch.int32
    return context.graph.op(op_type, *promoted(context, dtype, x, y))


def _logical(context: Context, x: Any, y: Any, *, op_type: str) -> Value:
    return context.graph.op(op_type, *promoted(context, torch.bool, x, y))


for _packet, _op_type in _COMPARISONS.items():
    lowers(_packet.Tensor, _packet.Scalar)(partial(_compared, op_type=_op_type))
for _target, _op_type in _LOGICAL.items():
    lowers(_target)(partial(_logical, op_type=_op_type))


@lowers(aten.ne.Tensor, aten.ne.Scalar)
def ne(context: Context, x: Any, y: Any) -> Value:
    return context.graph.op("Not", _compared(context, x, y, op_type="Equal"))


@lowers(aten.logical_not.default)
def logical_not(context: Context, x: Value) -> Value:
    return context.graph.op("Not", context.graph.cast(x, torch.bool))


@lowers(aten.bitwise_not.default)
def bitwise_not(context: Context, x: Value) -> Value:
    return context.graph.op("Not" if x.dtype is torch.bool else "BitwiseNot", x)


@lowers(aten.isnan.default)
def isnan(context: Context, x: Value) -> Value:
    return _if_float(context, "IsNaN", x)


@lowers(aten.isinf.default)
def isinf(context: Context, x: Value) -> Value:
    return _if_float(context, "IsInf", x)


def _if_float(context: Context, op_type: str, x: Value) -> Value:
    """Apply an operator that ONNX defines for floats only; it is false for integers."""
    return context.graph.op(op_type, x) if x.is_float else filled_like(context, x, False)


@lowers(aten.where.self)
def where(context: Context, condition: Value, x: Any, y: Any) -> Value:
    graph, dtype = context.graph, context.out.dtype
    condition = graph.cast(condition, torch.bool)
    x, y = promoted(context, dtype, x, y)
    if dtype is not torch.bool:
        return graph.op("Where", condition, x, y)
    # ONNX Runtime's `Where` has no kernel for booleans.
    return graph.op("Or", graph.op("And", condition, x), graph.op("And", graph.op("Not", condition), y))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(context: Context, x: Value, mask: Value, value: Any) -> Value:
    return where(context, mask, value, x)
