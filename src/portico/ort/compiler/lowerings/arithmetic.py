"""Arithmetic of several numbers, element by element; division has a file of its own."""

from typing import Any

import torch

from portico.ort.compiler.lowerings.registry import Context, lowers, promoted
from portico.ort.compiler.value import Value

aten = torch.ops.aten


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
