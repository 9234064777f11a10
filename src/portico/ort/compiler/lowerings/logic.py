"""Comparisons, and operators on what is true or false and on bits, element by element."""

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
# The operator for truth values and that for bits.
_BITWISE = {
    aten.bitwise_and: ("And", "BitwiseAnd"),
    aten.bitwise_or: ("Or", "BitwiseOr"),
    aten.bitwise_xor: ("Xor", "BitwiseXor"),
}


def _register_tables() -> None:
    for packet, op_type in _COMPARISONS.items():
        lowers(packet.Tensor, packet.Scalar)(lambda context, x, y, op_type=op_type: _compared(context, op_type, x, y))
    for target, op_type in _LOGICAL.items():
        lowers(target)(
            lambda context, x, y, op_type=op_type: context.graph.op(op_type, *promoted(context, torch.bool, x, y))
        )
    for packet, names in _BITWISE.items():
        lowers(packet.Tensor, packet.Scalar)(lambda context, x, y, names=names: _bitwise(context, names, x, y))


def _compared(context: Context, op_type: str, x: Any, y: Any) -> Value:
    dtype = common_dtype(x, y)
    if dtype is torch.bool and op_type != "Equal":
        dtype = torch.int32
    return context.graph.op(op_type, *promoted(context, dtype, x, y))


def _bitwise(context: Context, names: tuple[str, str], x: Any, y: Any) -> Value:
    dtype = context.out.dtype
    return context.graph.op(names[0] if dtype is torch.bool else names[1], *promoted(context, dtype, x, y))


_register_tables()


@lowers(aten.ne.Tensor, aten.ne.Scalar)
def ne(context: Context, x: Any, y: Any) -> Value:
    return context.graph.op("Not", _compared(context, "Equal", x, y))


@lowers(aten.logical_not.default)
def logical_not(context: Context, x: Value) -> Value:
    return context.graph.op("Not", context.graph.cast(x, torch.bool))


@lowers(aten.bitwise_not.default)
def bitwise_not(context: Context, x: Value) -> Value:
    return context.graph.op("Not" if x.dtype is torch.bool else "BitwiseNot", x)


@lowers(aten.isnan.default)
def isnan(context: Context, x: Value) -> Value:
    return _of_floats(context, "IsNaN", x)


@lowers(aten.isinf.default)
def isinf(context: Context, x: Value) -> Value:
    return _of_floats(context, "IsInf", x)


def _of_floats(context: Context, op_type: str, x: Value) -> Value:
    """Ask floats; the answer of integers is no."""
    is_float = x.dtype is not None and x.dtype.is_floating_point
    return context.graph.op(op_type, x) if is_float else filled_like(context, x, False)


@lowers(aten.where.self)
def where(context: Context, condition: Value, x: Any, y: Any) -> Value:
    graph, dtype = context.graph, context.out.dtype
    condition = graph.cast(condition, torch.bool)
    x, y = promoted(context, dtype, x, y)
    if dtype is not torch.bool:
        return graph.op("Where", condition, x, y)
    # ONNX Runtime chooses among numbers only.
    return graph.op("Or", graph.op("And", condition, x), graph.op("And", graph.op("Not", condition), y))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(context: Context, x: Value, mask: Value, value: Any) -> Value:
    return where(context, mask, value, x)
