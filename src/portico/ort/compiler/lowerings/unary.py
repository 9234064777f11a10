"""Functions of one number, element by element."""

import torch

from portico.ort.compiler.lowerings.registry import Context, lowers
from portico.ort.compiler.value import Value

aten = torch.ops.aten

_ALIKE = {
    aten.abs.default: "Abs",
    aten.neg.default: "Neg",
}
# An integer is rounded already.
_ROUNDINGS = {
    aten.ceil.default: "Ceil",
    aten.floor.default: "Floor",
    aten.round.default: "Round",
}
# Functions whose result of an integer is a float.
_TO_FLOAT = {
    aten.acos.default: "Acos",
    aten.acosh.default: "Acosh",
    aten.asin.default: "Asin",
    aten.asinh.default: "Asinh",
    aten.atan.default: "Atan",
    aten.atanh.default: "Atanh",
    aten.cos.default: "Cos",
    aten.cosh.default: "Cosh",
    aten.erf.default: "Erf",
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.reciprocal.default: "Reciprocal",
    aten.sigmoid.default: "Sigmoid",
    aten.sin.default: "Sin",
    aten.sinh.default: "Sinh",
    aten.sqrt.default: "Sqrt",
    aten.tan.default: "Tan",
    aten.tanh.default: "Tanh",
}


def _register(target: torch._ops.OpOverload, op_type: str) -> None:
    @lowers(target)
    def apply(context: Context, x: Value) -> Value:
        if target in _ROUNDINGS and not context.out.dtype.is_floating_point:
            return x
        return context.graph.op(op_type, context.graph.cast(x, context.out.dtype))


for _target, _op_type in (_ALIKE | _ROUNDINGS | _TO_FLOAT).items():
    _register(_target, _op_type)


@lowers(aten.relu.default)
def relu(context: Context, x: Value) -> Value:
    graph, dtype = context.graph, context.out.dtype
    return graph.op("Relu", x) if dtype.is_floating_point else graph.op("Max", x, graph.constant(0, dtype))


@lowers(aten.sign.default)
def sign(context: Context, x: Value) -> Value:
    """Return 1, 0 or -1; 0 for what is no number, of which ONNX Runtime's own operator makes none."""
    graph, dtype = context.graph, context.out.dtype
    if dtype is torch.bool:
        return x
    zero = graph.constant(0, dtype)
    is_positive, is_negative = (graph.op("Greater", *pair) for pair in ((x, zero), (zero, x)))
    return graph.op("Sub", *(graph.cast(side, dtype) for side in (is_positive, is_negative)))


@lowers(aten.trunc.default)
def trunc(context: Context, x: Value) -> Value:
    return truncated(context, x) if context.out.dtype.is_floating_point else x


def truncated(context: Context, x: Value) -> Value:
    """Return floats rounded towards zero, which they keep the sign of."""
    graph = context.graph
    is_negative = graph.op("Less", x, graph.constant(0, context.out.dtype))
    return graph.op("Where", is_negative, graph.op("Ceil", x), graph.op("Floor", x))


@lowers(aten.rsqrt.default)
def rsqrt(context: Context, x: Value) -> Value:
    graph = context.graph
    return graph.op("Reciprocal", graph.op("Sqrt", graph.cast(x, context.out.dtype)))


@lowers(aten.log1p.default)
def log1p(context: Context, x: Value) -> Value:
    """Return ``log(1 + x)`` with the digits of ``x`` that ``1 + x`` has no room for.

    The logarithm of what is left of ``x`` in ``1 + x`` is as much too large or small as that is.
    """
    graph, dtype = context.graph, context.out.dtype
    x, one = graph.cast(x, dtype), graph.constant(1, dtype)
    total = graph.op("Add", x, one)
    left = graph.op("Sub", total, one)
    log = graph.op("Log", total)
    corrected = graph.op("Mul", log, graph.op("Div", x, left))
    corrected = graph.op("Where", graph.op("Equal", left, graph.constant(0, dtype)), x, corrected)
    # Infinity, too, is left as it is.
    return graph.op("Where", graph.op("IsInf", total), log, corrected)
