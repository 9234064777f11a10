"""Operators that work on each element by itself."""

from typing import Any

import torch

from portico.ort.compiler.lowerings.registry import Context, common_dtype, lowers, promoted
from portico.ort.compiler.value import Value

aten = torch.ops.aten

_UNARY = {
    aten.abs.default: "Abs",
    aten.ceil.default: "Ceil",
    aten.floor.default: "Floor",
    aten.neg.default: "Neg",
    aten.relu.default: "Relu",
    aten.round.default: "Round",
    aten.sign.default: "Sign",
}
# Functions whose result of an integer is a float.
_FLOAT_UNARY = {
    aten.acos.default: "Acos",
    aten.asin.default: "Asin",
    aten.atan.default: "Atan",
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
_BINARY = {aten.mul: "Mul", aten.maximum: "Max", aten.minimum: "Min"}
_COMPARISON = {
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
_BITWISE = {aten.bitwise_and: ("And", "BitwiseAnd"), aten.bitwise_or: ("Or", "BitwiseOr")}


def _overloads(packet: Any) -> list[Any]:
    return [getattr(packet, name) for name in ("Tensor", "Scalar", "default") if name in packet.overloads()]


def _register_tables() -> None:
    for target, op_type in _UNARY.items():
        lowers(target)(lambda context, x, op_type=op_type: context.graph.op(op_type, x))
    for target, op_type in _FLOAT_UNARY.items():
        lowers(target)(lambda context, x, op_type=op_type: _float_unary(context, op_type, x))
    for packet, op_type in _BINARY.items():
        lowers(*_overloads(packet))(lambda context, x, y, op_type=op_type: _binary(context, op_type, x, y))
    for packet, op_type in _COMPARISON.items():
        lowers(*_overloads(packet))(lambda context, x, y, op_type=op_type: _compare(context, op_type, x, y))
    for target, op_type in _LOGICAL.items():
        lowers(target)(
            lambda context, x, y, op_type=op_type: context.graph.op(op_type, *promoted(context, torch.bool, x, y))
        )
    for packet, names in _BITWISE.items():
        lowers(*_overloads(packet))(lambda context, x, y, names=names: _bitwise(context, names, x, y))


def _float_unary(context: Context, op_type: str, x: Value) -> Value:
    return context.graph.op(op_type, context.graph.cast(x, context.out.dtype))


def _binary(context: Context, op_type: str, x: Any, y: Any) -> Value:
    dtype = context.out.dtype
    if dtype is torch.bool:
        return context.graph.op({"Mul": "And", "Max": "Or", "Min": "And"}[op_type], x, y)
    return context.graph.op(op_type, *promoted(context, dtype, x, y))


def _compare(context: Context, op_type: str, x: Any, y: Any) -> Value:
    dtype = common_dtype(x, y)
    if dtype is torch.bool and op_type != "Equal":
        dtype = torch.int32
    return context.graph.op(op_type, *promoted(context, dtype, x, y))


def _bitwise(context: Context, names: tuple[str, str], x: Any, y: Any) -> Value:
    dtype = context.out.dtype
    return context.graph.op(names[0] if dtype is torch.bool else names[1], *promoted(context, dtype, x, y))


_register_tables()


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(context: Context, x: Any, y: Any, alpha: Any = 1) -> Value:
    x, y = promoted(context, context.out.dtype, x, y)
    if context.out.dtype is torch.bool:
        return context.graph.op("Or", x, y)
    return context.graph.op("Add", x, _scaled(context, y, alpha))


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(context: Context, x: Any, y: Any, alpha: Any = 1) -> Value:
    x, y = promoted(context, context.out.dtype, x, y)
    return context.graph.op("Sub", x, _scaled(context, y, alpha))


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(context: Context, x: Any, y: Any, alpha: Any = 1) -> Value:
    return sub(context, y, x, alpha)


def _scaled(context: Context, value: Value, factor: Any) -> Value:
    if isinstance(factor, int | float) and factor == 1:
        return value
    return context.graph.op("Mul", value, context.graph.scalar(factor, context.out.dtype))


@lowers(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(context: Context, base: Any, exponent: Any) -> Value:
    graph, dtype = context.graph, context.out.dtype
    if isinstance(exponent, int | float) and exponent == 2:
        (base,) = promoted(context, dtype, base)
        return graph.op("Mul", base, base)
    return graph.op("Pow", *promoted(context, dtype, base, exponent))


@lowers(aten.rsqrt.default)
def rsqrt(context: Context, x: Value) -> Value:
    return context.graph.op("Reciprocal", _float_unary(context, "Sqrt", x))


@lowers(aten.log1p.default)
def log1p(context: Context, x: Value) -> Value:
    (x, one) = promoted(context, context.out.dtype, x, 1)
    return context.graph.op("Log", context.graph.op("Add", x, one))


@lowers(aten.ne.Tensor, aten.ne.Scalar)
def ne(context: Context, x: Any, y: Any) -> Value:
    return context.graph.op("Not", _compare(context, "Equal", x, y))


@lowers(aten.logical_not.default)
def logical_not(context: Context, x: Value) -> Value:
    return context.graph.op("Not", context.graph.cast(x, torch.bool))


@lowers(aten.bitwise_not.default)
def bitwise_not(context: Context, x: Value) -> Value:
    return context.graph.op("Not" if x.dtype is torch.bool else "BitwiseNot", x)


@lowers(aten.isnan.default)
def isnan(context: Context, x: Value) -> Value:
    return context.graph.op("IsNaN", x)


@lowers(aten.isinf.default)
def isinf(context: Context, x: Value) -> Value:
    return context.graph.op("IsInf", x)


@lowers(aten.where.self)
def where(context: Context, condition: Value, x: Any, y: Any) -> Value:
    graph = context.graph
    return graph.op("Where", graph.cast(condition, torch.bool), *promoted(context, context.out.dtype, x, y))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(context: Context, x: Value, mask: Value, value: Any) -> Value:
    return where(context, mask, value, x)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(context: Context, x: Value, low: Any = None, high: Any = None) -> Value:
    graph, dtype = context.graph, context.out.dtype
    result = graph.cast(x, dtype)
    if low is not None:
        result = graph.op("Max", result, *promoted(context, dtype, low))
    if high is not None:
        result = graph.op("Min", result, *promoted(context, dtype, high))
    return result


@lowers(aten.addcmul.default)
def addcmul(context: Context, x: Value, first: Value, second: Value, *, value: Any = 1) -> Value:
    product = context.graph.op("Mul", first, second)
    return context.graph.op("Add", x, _scaled(context, product, value))
