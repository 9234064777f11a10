"""Functions of one number, element by element."""

from typing import Any

import torch

from portico.ort.compiler.graph import Value
from portico.ort.compiler.lowerings.registry import Context, lowers, promoted

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


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(context: Context, x: Any, y: Any) -> Value:
    return _combined(context, ("Mul", "And"), x, y)


@lowers(aten.maximum.default)
def maximum(context: Context, x: Any, y: Any) -> Value:
    return _combined(context, ("Max", "Or"), x, y)


@lowers(aten.minimum.default)
def minimum(context: Context, x: Any, y: Any) -> Value:
    return _combined(context, ("Min", "And"), x, y)


def _combined(context: Context, names: tuple[str, str], x: Any, y: Any) -> Value:
    """Apply an operator for numbers, or its counterpart for truth values."""
    dtype = context.out.dtype
    return context.graph.op(names[dtype is torch.bool], *promoted(context, dtype, x, y))


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


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(context: Context, x: Value, low: Any = None, high: Any = None) -> Value:
    graph, dtype = context.graph, context.out.dtype
    result = graph.cast(x, dtype)
    if low is not None:
        result = graph.op("Max", result, *promoted(context, dtype, low))
    if high is not None:
        result = graph.op("Min", result, *promoted(context, dtype, high))
    return result


@lowers(aten.hardtanh.default)
def hardtanh(context: Context, x: Value, low: Any = -1, high: Any = 1) -> Value:
    return clamp(context, x, low, high)


@lowers(aten.addcmul.default)
def addcmul(context: Context, x: Value, first: Value, second: Value, *, value: Any = 1) -> Value:
    product = context.graph.op("Mul", first, second)
    return context.graph.op("Add", x, _scaled(context, product, value))


# The last is what torch makes of a division of numbers, such as a mean over rows of which it does not know how many.
@lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(context: Context, x: Any, y: Any) -> Value:
    return context.graph.op("Div", *promoted(context, context.out.dtype, x, y))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_rounded(context: Context, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    dtype = context.out.dtype
    x, y = promoted(context, dtype, x, y)
    if rounding_mode == "floor":
        return _floor_of_floats(context, x, y) if dtype.is_floating_point else _floor_of_integers(context, x, y)
    quotient: Value = context.graph.op("Div", x, y)
    return truncated(context, quotient) if rounding_mode and dtype.is_floating_point else quotient


def _floor_of_floats(context: Context, x: Value, y: Value) -> Value:
    """Return the quotient of what the remainder leaves: that of the numbers themselves may round up to the next."""
    graph, dtype = context.graph, context.out.dtype
    rest, is_below = _rest(context, x, y)
    quotient = graph.op("Div", graph.op("Sub", x, rest), y)
    floor = graph.op("Round", graph.op("Sub", quotient, graph.cast(is_below, dtype)))
    is_zero = graph.op("Equal", y, graph.constant(0, dtype))
    return graph.op("Where", is_zero, graph.op("Div", x, y), floor)


def _floor_of_integers(context: Context, x: Value, y: Value) -> Value:
    """Return a quotient rounded down; ONNX rounds those of integers towards zero."""
    graph, dtype = context.graph, context.out.dtype
    zero = graph.constant(0, dtype)
    remains = graph.op("Not", graph.op("Equal", graph.op("Mod", x, y), zero))
    correction = graph.op("And", remains, _differ_in_sign(context, x, y))
    return graph.op("Sub", graph.op("Div", x, y), graph.cast(correction, dtype))


@lowers(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(context: Context, x: Any, y: Any) -> Value:
    graph, dtype = context.graph, context.out.dtype
    x, y = promoted(context, dtype, x, y)
    if not dtype.is_floating_point:
        return graph.op("Mod", x, y)
    rest, is_below = _rest(context, x, y)
    return graph.op("Where", is_below, graph.op("Add", rest, y), rest)


def _rest(context: Context, x: Value, y: Value) -> tuple[Value, Value]:
    """Return the remainder of floats with the sign of the dividend, and whether it is not that of the divisor."""
    graph = context.graph
    rest = graph.op("Mod", x, y, fmod=1)
    remains = graph.op("Not", graph.op("Equal", rest, graph.constant(0, context.out.dtype)))
    return rest, graph.op("And", remains, _differ_in_sign(context, rest, y))


def _differ_in_sign(context: Context, x: Value, y: Value) -> Value:
    zero = context.graph.constant(0, context.out.dtype)
    return context.graph.op("Xor", context.graph.op("Less", x, zero), context.graph.op("Less", y, zero))


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(context: Context, x: Any, y: Any) -> Value:
    graph, dtype = context.graph, context.out.dtype
    x, y = promoted(context, dtype, x, y)
    if dtype.is_floating_point:
        return graph.op("Mod", x, y, fmod=1)
    # ONNX Runtime would compute that of integers in float64, which has not room for all of them.
    return graph.op("Sub", x, graph.op("Mul", graph.op("Div", x, y), y))
