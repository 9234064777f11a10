"""Division with its roundings and remainders."""

from typing import Any

import torch

from portico.ort.compiler.lowerings.registry import Context, lowers, promoted
from portico.ort.compiler.value import Value

aten = torch.ops.aten


@lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(context: Context, x: Any, y: Any) -> Value:
    return context.graph.op("Div", *promoted(context, context.out.dtype, x, y))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_rounded(context: Context, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    graph, dtype = context.graph, context.out.dtype
    x, y = promoted(context, dtype, x, y)
    quotient = graph.op("Div", x, y)
    if dtype.is_floating_point:
        if rounding_mode == "floor":
            return graph.op("Floor", quotient)
        return _truncated(context, quotient) if rounding_mode == "trunc" else quotient
    if rounding_mode == "trunc":
        return quotient
    # ONNX divides integers towards zero: one less where signs differ and something remains.
    zero = graph.constant(0, dtype)
    remains = graph.op("Not", graph.op("Equal", graph.op("Mod", x, y), zero))
    differ = graph.op("Xor", graph.op("Less", x, zero), graph.op("Less", y, zero))
    correction = graph.op("And", remains, differ)
    return graph.op("Sub", quotient, graph.cast(correction, dtype))


@lowers(aten.trunc.default)
def trunc(context: Context, x: Value) -> Value:
    return _truncated(context, x)


def _truncated(context: Context, x: Value) -> Value:
    graph = context.graph
    return graph.op("Mul", graph.op("Sign", x), graph.op("Floor", graph.op("Abs", x)))


@lowers(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(context: Context, x: Any, y: Any) -> Value:
    graph, dtype = context.graph, context.out.dtype
    x, y = promoted(context, dtype, x, y)
    if not dtype.is_floating_point:
        return graph.op("Mod", x, y)
    # ONNX's float `Mod` takes the sign of the dividend, torch's remainder that of the divisor.
    return graph.op("Sub", x, graph.op("Mul", graph.op("Floor", graph.op("Div", x, y)), y))


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(context: Context, x: Any, y: Any) -> Value:
    return context.graph.op("Mod", *promoted(context, context.out.dtype, x, y), fmod=1)
