"""Activation functions and their derivatives."""

import math
from typing import Any

import torch

from portico.ort.compiler.graph import MICROSOFT
from portico.ort.compiler.lowerings.registry import Context, lowers, promoted
from portico.ort.compiler.value import Value

aten = torch.ops.aten


@lowers(aten.gelu.default)
def gelu(context: Context, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "none":
        return context.graph.op("Gelu", x, domain=MICROSOFT)
    return context.graph.op("Gelu", x, approximate=approximate)


@lowers(aten.gelu_backward.default)
def gelu_backward(context: Context, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    derivative = _gelu_derivative if approximate == "none" else _tanh_gelu_derivative
    return context.graph.op("Mul", grad, derivative(context, x))


def _gelu_derivative(context: Context, x: Value) -> Value:
    """``Phi(x) + x phi(x)`` of the normal distribution."""
    graph, number = context.graph, _numbers(context)
    erf = graph.op("Erf", graph.op("Mul", x, number(math.sqrt(0.5))))
    cumulative = graph.op("Mul", graph.op("Add", erf, number(1)), number(0.5))
    density = graph.op("Exp", graph.op("Mul", graph.op("Mul", x, x), number(-0.5)))
    density = graph.op("Mul", density, number(1 / math.sqrt(2 * math.pi)))
    return graph.op("Add", cumulative, graph.op("Mul", x, density))


def _tanh_gelu_derivative(context: Context, x: Value) -> Value:
    graph, number = context.graph, _numbers(context)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = graph.op("Mul", x, x)
    polynomial = graph.op("Add", graph.op("Mul", square, number(cubic)), number(1))
    inner = graph.op("Mul", graph.op("Mul", x, number(scale)), polynomial)
    tanh = graph.op("Tanh", inner)
    slope = graph.op("Mul", graph.op("Add", graph.op("Mul", square, number(3 * cubic)), number(1)), number(scale))
    steepness = graph.op("Sub", number(1), graph.op("Mul", tanh, tanh))
    left = graph.op("Mul", graph.op("Add", tanh, number(1)), number(0.5))
    right = graph.op("Mul", graph.op("Mul", graph.op("Mul", x, number(0.5)), steepness), slope)
    return graph.op("Add", left, right)


@lowers(aten.silu.default)
def silu(context: Context, x: Value) -> Value:
    return context.graph.op("Mul", x, context.graph.op("Sigmoid", x))


@lowers(aten.silu_backward.default)
def silu_backward(context: Context, grad: Value, x: Value) -> Value:
    graph, one = context.graph, _numbers(context)(1)
    sigmoid = graph.op("Sigmoid", x)
    inner = graph.op("Add", graph.op("Mul", x, graph.op("Sub", one, sigmoid)), one)
    return graph.op("Mul", grad, graph.op("Mul", sigmoid, inner))


@lowers(aten.tanh_backward.default)
def tanh_backward(context: Context, grad: Value, y: Value) -> Value:
    graph, one = context.graph, _numbers(context)(1)
    return graph.op("Mul", grad, graph.op("Sub", one, graph.op("Mul", y, y)))


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(context: Context, grad: Value, y: Value) -> Value:
    graph, one = context.graph, _numbers(context)(1)
    return graph.op("Mul", grad, graph.op("Mul", y, graph.op("Sub", one, y)))


@lowers(aten.threshold_backward.default)
def threshold_backward(context: Context, grad: Value, x: Value, threshold: Any) -> Value:
    graph, number = context.graph, _numbers(context)
    return graph.op("Where", graph.op("LessOrEqual", x, number(threshold)), number(0), grad)


@lowers(aten.leaky_relu.default)
def leaky_relu(context: Context, x: Value, negative_slope: float = 0.01) -> Value:
    return context.graph.op("LeakyRelu", x, alpha=float(negative_slope))


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(
    context: Context, grad: Value, x: Value, negative_slope: float, self_is_result: bool = False
) -> Value:
    graph, number = context.graph, _numbers(context)
    slope = graph.op("Where", graph.op("Greater", x, number(0)), number(1), number(negative_slope))
    return graph.op("Mul", grad, slope)


def _numbers(context: Context) -> Any:
    return lambda number: context.graph.constant(number, context.out.dtype)


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(context: Context, grad: Value, mask: Value, scale: float) -> Value:
    noise = context.graph.op("Mul", *promoted(context, context.out.dtype, mask, scale))
    return context.graph.op("Mul", grad, noise)
