"""Softmax and layer normalisation, and their derivatives."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.dtypes import onnx_type
from portico.ort.compiler.lowerings.reductions import reduced
from portico.ort.compiler.lowerings.registry import Context, lowers, numbers_as_vectors
from portico.ort.compiler.value import Value

aten = torch.ops.aten


@lowers(aten._softmax.default)
@numbers_as_vectors
def softmax(context: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    return context.graph.op("Softmax", context.graph.cast(x, context.out.dtype), axis=dim)


@lowers(aten._safe_softmax.default)
@numbers_as_vectors
def safe_softmax(context: Context, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    graph, dtype = context.graph, context.out.dtype
    x, nothing = graph.cast(x, dtype), graph.constant(float("-inf"), dtype)
    # A row of nothing but -inf has no probabilities: torch says zero.
    is_alive = graph.op("Not", graph.op("Equal", reduced(graph, "ReduceMax", x, dim, True), nothing))
    floor = graph.op("Where", is_alive, nothing, graph.constant(0, dtype))
    probabilities = graph.op("Softmax", graph.op("Max", x, floor), axis=dim)
    return graph.op("Mul", probabilities, graph.op("Cast", is_alive, to=onnx_type(dtype)))


@lowers(aten._log_softmax.default)
@numbers_as_vectors
def log_softmax(context: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    return context.graph.op("LogSoftmax", context.graph.cast(x, context.out.dtype), axis=dim)


@lowers(aten._softmax_backward_data.default)
@numbers_as_vectors
def softmax_backward(context: Context, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    graph = context.graph
    weighted = graph.op("Mul", grad, y)
    total = reduced(graph, "ReduceSum", weighted, dim, True)
    return _in(context, graph.op("Sub", weighted, graph.op("Mul", y, total)), grad)


@lowers(aten._log_softmax_backward_data.default)
@numbers_as_vectors
def log_softmax_backward(context: Context, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    graph = context.graph
    total = reduced(graph, "ReduceSum", grad, dim, True)
    return _in(context, graph.op("Sub", grad, graph.op("Mul", graph.op("Exp", y), total)), grad)


def _in(context: Context, value: Value, computed_in: Value) -> Value:
    return context.graph.cast(Value(value.name, computed_in.dtype), context.out.dtype)


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    context: Context, x: Value, normalized_shape: Sequence[Any], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    graph = context.graph
    if weight is None:
        weight = graph.op("Expand", graph.constant(1, context.out[0].dtype), graph.vector(normalized_shape))
    y, *statistics = graph.op(
        "LayerNormalization", x, weight, bias, outputs=3, axis=-len(normalized_shape), epsilon=float(eps)
    )
    # ONNX Runtime returns them in float32, whatever it is that is normalised.
    mean, rstd = (graph.cast(Value(value.name, torch.float32), context.out[1].dtype) for value in statistics)
    return y, mean, rstd


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    context: Context,
    grad: Value,
    x: Value,
    normalized_shape: Sequence[Any],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    graph = context.graph
    inner = list(range(x.rank - len(normalized_shape), x.rank))
    outer = list(range(x.rank - len(normalized_shape)))
    normalized = graph.op("Mul", graph.op("Sub", x, mean), rstd)
    grads: list[Value | None] = [None, None, None]
    if output_mask[0]:
        scaled = grad if weight is None else graph.op("Mul", grad, weight)
        average = reduced(graph, "ReduceMean", scaled, inner, True)
        slope = reduced(graph, "ReduceMean", graph.op("Mul", scaled, normalized), inner, True)
        centered = graph.op("Sub", graph.op("Sub", scaled, average), graph.op("Mul", normalized, slope))
        grads[0] = graph.op("Mul", rstd, centered)
    if output_mask[1]:
        grads[1] = _over(graph, graph.op("Mul", grad, normalized), outer)
    if output_mask[2]:
        grads[2] = _over(graph, grad, outer)
    return tuple(grads)


def _over(graph: Any, value: Value, dims: list[int]) -> Value:
    return reduced(graph, "ReduceSum", value, dims) if dims else value
