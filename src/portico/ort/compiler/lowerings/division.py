"""Division with its roundings and remainders."""

from typing import Any

import torch

from portico.ort.compiler.lowerings.registry import Context, lowers, promoted
from portico.ort.compiler.lowerings.unary import truncated
from portico.ort.compiler.value import Value

aten = torch.ops.aten


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
