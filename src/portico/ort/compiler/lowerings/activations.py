"""Activation functions and their derivatives."""

import math
from typing import Any

import torch

from portico.ort.compiler.graph import MICROSOFT, Graph, Value
from portico.ort.compiler.lowerings.registry import lowers

aten = torch.ops.aten


@lowers(aten.gelu.default)
def gelu(graph: Graph, x: Value, *, approximate: str = "none") -> Value:
    if approximate != "none":
        return graph.op("Gelu", x, approximate=approximate)
    readers = (user for source in graph.node.all_input_nodes for user in source.users)
    if any(user.target is aten.gelu_backward.default for user in readers):
        # The derivative has the same nodes, and ONNX Runtime computes equal nodes once.
        return graph.op("Mul", x, _normal_distribution(graph, _over_sqrt_2(graph, x)))
    return graph.op("Gelu", x, domain=MICROSOFT)


@lowers(aten.gelu_backward.default)
def gelu_backward(graph: Graph, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    derivative = _gelu_derivative if approximate == "none" else _tanh_gelu_derivative
    return graph.op("Mul", grad, derivative(graph, x))


def _gelu_derivative(graph: Graph, x: Value) -> Value:
    """``Phi(x) + x phi(x)`` of the normal distribution, in as few passes over memory as possible."""
    t = _over_sqrt_2(graph, x)
    # x phi(x) = t exp(-t^2) / sqrt(pi), with the constant factor moved into the exponent.
    exponent = graph.op("Sub", graph.operand(-math.log(math.pi) / 2), graph.op("Mul", t, t))
    return graph.op("Add", _normal_distribution(graph, t), graph.op("Mul", t, graph.op("Exp", exponent)))


def _over_sqrt_2(graph: Graph, x: Value) -> Value:
    return graph.op("Mul", x, graph.operand(math.sqrt(0.5)))


def _normal_distribution(graph: Graph, t: Value) -> Value:
    """``Phi(sqrt(2) t)``, which is ``erf(t) / 2 + 1 / 2``: a hard sigmoid computes that in one pass."""
    return graph.op("HardSigmoid", graph.op("Erf", t), alpha=0.5, beta=0.5)


def _tanh_gelu_derivative(graph: Graph, x: Value) -> Value:
    number, scale, cubic = graph.operand, math.sqrt(2 / math.pi), 0.044715
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
def silu(graph: Graph, x: Value) -> Value:
    return graph.op("Mul", x, graph.op("Sigmoid", x))


@lowers(aten.silu_backward.default)
def silu_backward(graph: Graph, grad: Value, x: Value) -> Value:
    sigmoid, one = graph.op("Sigmoid", x), graph.operand(1)
    inner = graph.op("Add", graph.op("Mul", x, graph.op("Sub", one, sigmoid)), one)
    return graph.op("Mul", grad, graph.op("Mul", sigmoid, inner))


@lowers(aten.tanh_backward.default)
def tanh_backward(graph: Graph, grad: Value, y: Value) -> Value:
    return graph.op("Mul", grad, graph.op("Sub", graph.operand(1), graph.op("Mul", y, y)))


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(graph: Graph, grad: Value, y: Value) -> Value:
    return graph.op("Mul", grad, graph.op("Mul", y, graph.op("Sub", graph.operand(1), y)))


@lowers(aten.threshold_backward.default)
def threshold_backward(graph: Graph, grad: Value, x: Value, threshold: Any) -> Value:
    return graph.op("Where", graph.op("LessOrEqual", x, graph.operand(threshold)), graph.operand(0), grad)


@lowers(aten.leaky_relu.default)
def leaky_relu(graph: Graph, x: Value, negative_slope: float = 0.01) -> Value:
    return graph.op("LeakyRelu", x, alpha=float(negative_slope))


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(graph: Graph, grad: Value, x: Value, negative_slope: float, self_is_result: bool) -> Value:
    is_positive = graph.op("Greater", x, graph.operand(0))
    return graph.op("Mul", grad, graph.op("Where", is_positive, graph.operand(1), graph.operand(negative_slope)))
