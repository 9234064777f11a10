"""Element-wise arithmetic, for one operand and for two."""

from typing import Any

import torch

from portico.ort.compiler.graph import Value
from portico.ort.compiler.lowerings.registry import Context, lowers, promoted

aten = torch.ops.aten

# ONNX defines rounding for floats only; an integer is rounded already.
_ROUNDINGS = {aten.ceil.default: "Ceil", aten.floor.default: "Floor", aten.round.default: "Round"}
_UNARY = {
    aten.abs.default: "Abs",
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
    aten.neg.default: "Neg",
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


for _target, _op_type in (_ROUNDINGS | _UNARY).items():
    _register(_target, _op_type)


@lowers(aten.relu.default)
def relu(context: Context, x: Value) -> Value:
    graph, dtype = context.graph, context.out.dtype
    return graph.op("Relu", x) if dtype.is_floating_point else graph.op("Max", x, graph.constant(0, dtype))


@lowers(aten.sign.default)
def sign(context: Context, x: Value) -> Value:
    """Return 1, 0 or -1, and 0 for NaN, for which ONNX Runtime's ``Sign`` returns NaN."""
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
    """Round floats towards zero, keeping the sign of a zero."""
    graph = context.graph
    is_negative = graph.op("Less", x, graph.constant(0, context.out.dtype))
    return graph.op("Where", is_negative, graph.op("Ceil", x), graph.op("Floor", x))


@lowers(aten.rsqrt.default)
def rsqrt(context: Context, x: Value) -> Value:
    graph = context.graph
    return graph.op("Reciprocal", graph.op("Sqrt", graph.cast(x, context.out.dtype)))


@lowers(aten.log1p.default)
def log1p(context: Context, x: Value) -> Value:
    """Return ``log(1 + x)`` without the rounding of ``1 + x``.

    ``log(u) * x / (u - 1)`` with ``u = 1 + x``: the errors of numerator and denominator cancel (Kahan; theorem 4 of
    Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991).
    """
    graph, dtype = context.graph, context.out.dtype
    x, one = graph.cast(x, dtype), graph.constant(1, dtype)
    total = graph.op("Add", x, one)
    kept = graph.op("Sub", total, one)
    log = graph.op("Log", total)
    corrected = graph.op("Mul", log, graph.op("Div", x, kept))
    corrected = graph.op("Where", graph.op("Equal", kept, graph.constant(0, dtype)), x, corrected)
    return graph.op("Where", graph.op("IsInf", total), log, corrected)


# Binary operators: for booleans, and for numbers.
_BINARY = {
    (aten.mul.Tensor, aten.mul.Scalar): ("And", "Mul"),
    (aten.maximum.default,): ("Or", "Max"),
    (aten.minimum.default,): ("And", "Min"),
    (aten.bitwise_and.Tensor, aten.bitwise_and.Scalar): ("And", "BitwiseAnd"),
    (aten.bitwise_or.Tensor, aten.bitwise_or.Scalar): ("Or", "BitwiseOr"),
    (aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar): ("Xor", "BitwiseXor"),
}


def _register_binary(targets: Any, of_booleans: str, of_numbers: str) -> None:
    @lowers(*targets)
    def apply(context: Context, x: Any, y: Any) -> Value:
        dtype = context.out.dtype
        op_type = of_booleans if dtype is torch.bool else of_numbers
        return context.graph.op(op_type, *promoted(context, dtype, x, y))


for _targets, _op_types in _BINARY.items():
    _register_binary(_targets, *_op_types)


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


# Torch emits the last for a quotient of numbers, such as a mean over a symbolic number of rows.
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
    """Divide ``x`` less its remainder, as ATen's ``div_floor`` does: ``x / y`` itself may round up to an integer."""
    graph, dtype = context.graph, context.out.dtype
    rest, is_below = _rest(context, x, y)
    quotient = graph.op("Div", graph.op("Sub", x, rest), y)
    floor = graph.op("Round", graph.op("Sub", quotient, graph.cast(is_below, dtype)))
    is_zero = graph.op("Equal", y, graph.constant(0, dtype))
    return graph.op("Where", is_zero, graph.op("Div", x, y), floor)


def _floor_of_integers(context: Context, x: Value, y: Value) -> Value:
    """Divide and round down; ONNX rounds a quotient of integers towards zero."""
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
    """Return the remainder with the sign of the dividend, and whether the sign of the divisor differs."""
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
    # ONNX Runtime computes fmod of integers in float64, which cannot represent all int64.
    return graph.op("Sub", x, graph.op("Mul", graph.op("Div", x, y), y))
