"""Element-wise arithmetic, for one operand and for two."""

from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Value
from portico.ort.compiler.lowerings.registry import lowers

aten = torch.ops.aten

# ONNX calls these as ATen does.
_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log", "neg", "reciprocal",
    "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


def _unary(graph: Graph, x: Value, *, op_type: str) -> Value:
    return graph.op(op_type, graph.operand(x))


for _name in _UNARY:
    lowers(getattr(aten, _name).default, op_type=_name.capitalize())(_unary)


@lowers(aten.ceil.default, op_type="Ceil")
@lowers(aten.floor.default, op_type="Floor")
@lowers(aten.round.default, op_type="Round")
def rounded(graph: Graph, x: Value, *, op_type: str) -> Value:
    # ONNX defines rounding for floats only; an integer is rounded already.
    return graph.op(op_type, x) if x.is_float else x


@lowers(aten.relu.default)
def relu(graph: Graph, x: Value) -> Value:
    return graph.op("Relu", x) if x.is_float else graph.op("Max", x, graph.operand(0))


@lowers(aten.sign.default)
def sign(graph: Graph, x: Value) -> Value:
    """Return 1, 0 or -1, and 0 for NaN, for which ONNX Runtime's ``Sign`` returns NaN."""
    if graph.out.dtype is torch.bool:
        return x
    zero = graph.operand(0)
    is_positive, is_negative = graph.op("Greater", x, zero), graph.op("Greater", zero, x)
    return graph.op("Sub", graph.operand(is_positive), graph.operand(is_negative))


@lowers(aten.trunc.default)
def trunc(graph: Graph, x: Value) -> Value:
    return _truncated(graph, x) if x.is_float else x


def _truncated(graph: Graph, x: Value) -> Value:
    """Round floats towards zero, keeping the sign of a zero."""
    is_negative = graph.op("Less", x, graph.operand(0))
    return graph.op("Where", is_negative, graph.op("Ceil", x), graph.op("Floor", x))


@lowers(aten.rsqrt.default)
def rsqrt(graph: Graph, x: Value) -> Value:
    return graph.op("Reciprocal", graph.op("Sqrt", graph.operand(x)))


@lowers(aten.log1p.default)
def log1p(graph: Graph, x: Value) -> Value:
    """Return ``log(1 + x)`` without the rounding of ``1 + x``.

    ``log(u) * x / (u - 1)`` with ``u = 1 + x``: the errors of numerator and denominator cancel (Kahan; theorem 4 of
    Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991).
    """
    x, one = graph.operand(x), graph.operand(1)
    total = graph.op("Add", x, one)
    kept = graph.op("Sub", total, one)
    log = graph.op("Log", total)
    corrected = graph.op("Mul", log, graph.op("Div", x, kept))
    corrected = graph.op("Where", graph.op("Equal", kept, graph.operand(0)), x, corrected)
    return graph.op("Where", graph.op("IsInf", total), log, corrected)


@lowers(aten.mul.Tensor, aten.mul.Scalar, of_booleans="And", of_numbers="Mul")
@lowers(aten.maximum.default, of_booleans="Or", of_numbers="Max")
@lowers(aten.minimum.default, of_booleans="And", of_numbers="Min")
@lowers(aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, of_booleans="And", of_numbers="BitwiseAnd")
@lowers(aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, of_booleans="Or", of_numbers="BitwiseOr")
@lowers(aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, of_booleans="Xor", of_numbers="BitwiseXor")
def binary(graph: Graph, x: Any, y: Any, *, of_booleans: str, of_numbers: str) -> Value:
    op_type = of_booleans if graph.out.dtype is torch.bool else of_numbers
    return graph.op(op_type, graph.operand(x), graph.operand(y))


@lowers(aten.add.Tensor, aten.add.Scalar, op_type="Add")
@lowers(aten.sub.Tensor, aten.sub.Scalar, op_type="Sub")
def add_or_sub(graph: Graph, x: Any, y: Any, alpha: Any = 1, *, op_type: str) -> Value:
    x, y = graph.operand(x), graph.operand(y)
    if graph.out.dtype is torch.bool:
        return graph.op("Or", x, y)
    return graph.op(op_type, x, _scaled(graph, y, alpha))


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(graph: Graph, x: Any, y: Any, alpha: Any = 1) -> Value:
    return add_or_sub(graph, y, x, alpha, op_type="Sub")


def _scaled(graph: Graph, value: Value, factor: Any) -> Value:
    if isinstance(factor, int | float) and factor == 1:
        return value
    return graph.op("Mul", value, graph.operand(factor))


@lowers(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(graph: Graph, base: Any, exponent: Any) -> Value:
    base = graph.operand(base)
    if isinstance(exponent, int | float) and exponent == 2:
        return graph.op("Mul", base, base)
    return graph.op("Pow", base, graph.operand(exponent))


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(graph: Graph, x: Value, low: Any = None, high: Any = None) -> Value:
    result = graph.operand(x)
    if low is not None:
        result = graph.op("Max", result, graph.operand(low))
    return result if high is None else graph.op("Min", result, graph.operand(high))


@lowers(aten.hardtanh.default)
def hardtanh(graph: Graph, x: Value, low: Any = -1, high: Any = 1) -> Value:
    return clamp(graph, x, low, high)


@lowers(aten.addcmul.default)
def addcmul(graph: Graph, x: Value, first: Value, second: Value, *, value: Any = 1) -> Value:
    return graph.op("Add", x, _scaled(graph, graph.op("Mul", first, second), value))


# Torch emits the last for a quotient of numbers, such as a mean over a symbolic number of rows.
@lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(graph: Graph, x: Any, y: Any) -> Value:
    return graph.op("Div", graph.operand(x), graph.operand(y))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_rounded(graph: Graph, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    x, y = graph.operand(x), graph.operand(y)
    if rounding_mode == "floor":
        return _floor_of_floats(graph, x, y) if x.is_float else _floor_of_integers(graph, x, y)
    quotient: Value = graph.op("Div", x, y)
    return _truncated(graph, quotient) if rounding_mode and x.is_float else quotient


def _floor_of_floats(graph: Graph, x: Value, y: Value) -> Value:
    """Divide ``x`` less its remainder, as ATen's ``div_floor`` does: ``x / y`` itself may round up to an integer."""
    rest, is_below = _rest(graph, x, y)
    quotient = graph.op("Div", graph.op("Sub", x, rest), y)
    floor = graph.op("Round", graph.op("Sub", quotient, graph.operand(is_below)))
    is_zero = graph.op("Equal", y, graph.operand(0))
    return graph.op("Where", is_zero, graph.op("Div", x, y), floor)


def _floor_of_integers(graph: Graph, x: Value, y: Value) -> Value:
    """Divide and round down; ONNX rounds a quotient of integers towards zero."""
    remains = graph.op("Not", graph.op("Equal", graph.op("Mod", x, y), graph.operand(0)))
    correction = graph.op("And", remains, _differ_in_sign(graph, x, y))
    return graph.op("Sub", graph.op("Div", x, y), graph.operand(correction))


@lowers(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(graph: Graph, x: Any, y: Any) -> Value:
    x, y = graph.operand(x), graph.operand(y)
    if not x.is_float:
        return graph.op("Mod", x, y)
    rest, is_below = _rest(graph, x, y)
    return graph.op("Where", is_below, graph.op("Add", rest, y), rest)


def _rest(graph: Graph, x: Value, y: Value) -> tuple[Value, Value]:
    """Return the remainder with the sign of the dividend, and whether the sign of the divisor differs."""
    rest = graph.op("Mod", x, y, fmod=1)
    remains = graph.op("Not", graph.op("Equal", rest, graph.operand(0)))
    return rest, graph.op("And", remains, _differ_in_sign(graph, rest, y))


def _differ_in_sign(graph: Graph, x: Value, y: Value) -> Value:
    zero = graph.operand(0)
    return graph.op("Xor", graph.op("Less", x, zero), graph.op("Less", y, zero))


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(graph: Graph, x: Any, y: Any) -> Value:
    x, y = graph.operand(x), graph.operand(y)
    if x.is_float:
        return graph.op("Mod", x, y, fmod=1)
    # ONNX Runtime computes fmod of integers in float64, which cannot represent all int64.
    return graph.op("Sub", x, graph.op("Mul", graph.op("Div", x, y), y))
