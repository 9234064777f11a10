"""Activation functions and their derivatives."""

import math
from typing import Any

import torch

from portico.ort.compiler.graph import MICROSOFT, Value
from portico.ort.compiler.lowerings.registry import Context, lowers

aten = torch.ops.aten


@lowers(aten.gelu.default)
def gelu(context: Context, x: Value, *, approximate: str = "none") -> Value:
    if approximate != "none":
        return context.graph.op("Gelu", x, approximate=approximate)
    if context.reads_too(aten.gelu_backward.default):
        # The derivative has the same nodes, and ONNX Runtime computes equal nodes once.
        return context.graph.op("Mul", x, _normal_distribution(context, _over_sqrt_2(context, x)))
    return context.graph.op("Gelu", x, domain=MICROSOFT)


@lowers(aten.gelu_backward.default)
def gelu_backward(context: Context, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    derivative = _gelu_derivative if approximate == "none" else _tanh_gelu_derivative
    return context.graph.op("Mul", grad, derivative(context, x))


def _gelu_derivative(context: Context, x: Value) -> Value:
    """``Phi(x) + x phi(x)`` of the normal distribution, in as few passes over memory as possible."""
    graph, number = context.graph, _numbers(context)
    t = _over_sqrt_2(context, x)
    # x phi(x) = t exp(-t^2) / sqrt(pi), with the constant factor moved into the exponent.
    exponent = graph.op("Sub", number(-math.log(math.pi) / 2), graph.op("Mul", t, t))
    return graph.op("Add", _normal_distribution(context, t), graph.op("Mul", t, graph.op("Exp", exponent)))


def _over_sqrt_2(context: Context, x: Value) -> Value:
    return context.graph.op("Mul", x, _numbers(context)(math.sqrt(0.5)))


def _normal_distribution(context: Context, t: Value) -> Value:
    """``Phi(sqrt(2) t)``, which is ``erf(t) / 2 + 1 / 2``: a hard sigmoid computes that in one pass."""
    return context.graph.op("HardSigmoid", context.graph.op("Erf", t), alpha=0.5, beta=0.5)


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
