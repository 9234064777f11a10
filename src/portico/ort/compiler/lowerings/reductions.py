"""Reductions, softmax, layer and batch normalisation, and their derivatives."""

import math
from collections.abc import Sequence

import torch

from portico.ort.compiler.graph import Graph, Number, Size, Value, same_shape
from portico.ort.compiler.lowerings.creation import full
from portico.ort.compiler.lowerings.registry import lowers, lowers_along

aten = torch.ops.aten
Dims = Sequence[int] | int | None


def reduce(graph: Graph, op_type: str, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    """Return a reduction of ``x`` over ``dims``; ``None`` or an empty list means all."""
    chosen = [dims] if isinstance(dims, int) else list(dims or ())
    if x.shape is not None:
        # ONNX Runtime does not accept negative axes for an empty tensor.
        chosen = [axis % x.rank for axis in chosen]
    axes = graph.axes(*chosen) if chosen else None
    return graph.op(op_type, x, axes, keepdims=int(keepdim))


@lowers_along(aten.sum.dim_IntList, aten.sum.default, op_type="ReduceSum")
@lowers_along(aten.prod.default, aten.prod.dim_int, op_type="ReduceProd")
@lowers_along(aten.mean.dim, aten.mean.default, op_type="ReduceMean")
def accumulate(
    graph: Graph, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, op_type: str
) -> Value:
    if op_type == "ReduceMean" and _is_empty(x):
        return full(graph, graph.out.shape, float("nan"))
    return reduce(graph, op_type, graph.operand(x), dim, keepdim)


def _is_empty(x: Value) -> bool:
    """Return whether ``x`` has no elements: their mean is NaN in torch and 0 in ONNX Runtime."""
    return any(same_shape([dim], [0]) for dim in x.dims)


@lowers_along(aten.amax.default, aten.max.default, kind="Max")
@lowers_along(aten.amin.default, aten.min.default, kind="Min")
def extreme(graph: Graph, x: Value, dim: Dims = None, keepdim: bool = False, *, kind: str) -> Value:
    """Return the largest or smallest element, or NaN if there is one, which ONNX Runtime would ignore."""
    if x.dtype is torch.bool:
        return graph.cast(reduce(graph, f"Reduce{kind}", graph.cast(x, torch.int32), dim, keepdim), torch.bool)
    found = reduce(graph, f"Reduce{kind}", x, dim, keepdim)
    if not x.is_float:
        return found
    has_nan = graph.cast(reduce(graph, "ReduceMax", _is_nan(graph, x), dim, keepdim), torch.bool)
    return graph.op("Where", has_nan, graph.constant(float("nan"), x.dtype or graph.out.dtype), found)


def _is_nan(graph: Graph, x: Value) -> Value:
    """Return 1 where ``x`` is NaN and 0 elsewhere: ONNX Runtime has no reductions of booleans."""
    return graph.cast(graph.op("IsNaN", x, shape=x.shape), torch.int32)


@lowers_along(aten.argmax.default, kind="Max")
@lowers_along(aten.argmin.default, kind="Min")
def index_of_extreme(graph: Graph, x: Value, dim: int | None = None, keepdim: bool = False, *, kind: str) -> Value:
    if dim is not None:
        return _index_along(graph, x, dim, keepdim, kind)
    flat = graph.op("Reshape", x, graph.axes(-1), dtype=x.dtype)
    return graph.reshape(_index_along(graph, flat, 0, False, kind), graph.out.shape)


def _index_along(graph: Graph, x: Value, dim: int, keepdim: bool, kind: str) -> Value:
    """Return the index of the extreme, or of the first NaN if there is one, as torch does."""
    x = graph.cast(x, torch.int32) if x.dtype is torch.bool else x
    index = graph.op(f"Arg{kind}", x, axis=dim, keepdims=int(keepdim))
    if not x.is_float:
        return index
    is_nan = _is_nan(graph, x)
    has_nan = graph.cast(reduce(graph, "ReduceMax", is_nan, dim, keepdim), torch.bool)
    return graph.op("Where", has_nan, graph.op("ArgMax", is_nan, axis=dim, keepdims=int(keepdim)), index)


@lowers_along(aten.max.dim, kind="Max")
@lowers_along(aten.min.dim, kind="Min")
def extreme_and_index(graph: Graph, x: Value, dim: int, keepdim: bool = False, *, kind: str) -> tuple[Value, Value]:
    return extreme(graph, x, dim, keepdim, kind=kind), index_of_extreme(graph, x, dim, keepdim, kind=kind)


@lowers_along(aten.topk.default)
def topk(
    graph: Graph, x: Value, k: Size, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """Return the first elements in order, and their indices; equal ones stay in order, and NaN is as large as inf."""
    keys = x
    if x.is_float:
        keys = graph.op("Where", graph.op("IsNaN", x), graph.constant(math.inf, x.dtype or graph.out[0].dtype), x)
    values, indices = graph.op("TopK", keys, graph.vector([k]), outputs=2, axis=dim, largest=int(largest))
    return graph.op("GatherElements", x, indices, axis=dim) if x.is_float else values, indices


@lowers_along(aten.sort.default)
def sort(graph: Graph, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return topk(graph, x, x.dims[dim], dim, descending)


@lowers_along(aten.any.default, aten.any.dim, aten.any.dims)
def any_(graph: Graph, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Return whether any is true, by counting."""
    found = graph.cast(x, torch.bool)
    # An empty list of dimensions reduces none.
    if dim != []:
        found = graph.cast(reduce(graph, "ReduceSum", graph.cast(found, torch.int32), dim, keepdim), torch.bool)
    return graph.operand(found)


@lowers_along(aten.var.correction)
def var(graph: Graph, x: Value, dim: Dims = None, *, correction: Number | None = 1, keepdim: bool = False) -> Value:
    if _is_empty(x):
        return full(graph, graph.out.shape, float("nan"))
    centered = graph.op("Sub", x, reduce(graph, "ReduceMean", x, dim, True))
    squares = graph.op("Mul", centered, centered)
    if correction in (0, 0.0):
        return reduce(graph, "ReduceMean", squares, dim, keepdim)
    ones = graph.op("Expand", graph.operand(1), graph.op("Shape", x))
    count = reduce(graph, "ReduceSum", ones, dim, keepdim)
    free = graph.op("Sub", count, graph.operand(1 if correction is None else correction))
    free = graph.op("Max", free, graph.operand(0))
    return graph.op("Div", reduce(graph, "ReduceSum", squares, dim, keepdim), free)


@lowers_along(aten.cumsum.default)
def cumsum(graph: Graph, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return graph.op("CumSum", graph.operand(x), graph.constant(dim, torch.int64))


# ---- Normalisation ----


@lowers_along(aten._softmax.default, op_type="Softmax")
@lowers_along(aten._log_softmax.default, op_type="LogSoftmax")
def softmax(graph: Graph, x: Value, dim: int, half_to_float: bool, *, op_type: str) -> Value:
    return graph.op(op_type, graph.operand(x), axis=dim)


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    graph: Graph, x: Value, normalized_shape: Sequence[Size], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    if weight is None:
        weight = graph.op("Expand", graph.constant(1, graph.out[0].dtype), graph.vector(normalized_shape))
    y, *statistics = graph.op(
        "LayerNormalization", x, weight, bias, outputs=3, axis=-len(normalized_shape), epsilon=float(eps)
    )
    # ONNX Runtime returns the statistics in float32, whatever the dtype of `x`.
    mean, rstd = (graph.cast(Value(value.name, torch.float32), graph.out[1].dtype) for value in statistics)
    return y, mean, rstd


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_running_statistics(
    graph: Graph, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, Value, Value]:
    dims = [0, *range(2, x.rank)]
    mean = reduce(graph, "ReduceMean", x, dims)
    centered = graph.op("Sub", x, graph.op("Unsqueeze", mean, graph.axes(*dims)))
    var = reduce(graph, "ReduceMean", graph.op("Mul", centered, centered), dims)
    y, rstd = _batch_normalized(graph, x, weight, bias, mean, var, eps)
    return y, mean, rstd


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_in_evaluation(
    graph: Graph,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Normalise by the running statistics; like torch, return empty statistics of the batch."""
    y, _ = _batch_normalized(graph, x, weight, bias, running_mean, running_var, eps)
    empty = graph.constant([], graph.out[1].dtype)
    return y, empty, empty


def _batch_normalized(
    graph: Graph, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, eps: float
) -> tuple[Value, Value]:
    """Return ``x`` normalised, and the reciprocal of the standard deviation of each channel."""
    dtype = graph.out[0].dtype
    ones, zeros = (graph.op("Expand", graph.constant(each, dtype), graph.op("Shape", mean)) for each in (1, 0))
    given = (ones if weight is None else weight, zeros if bias is None else bias)
    # The operator's own `epsilon` is a float32.
    var = graph.op("Add", var, graph.constant(eps, dtype))
    normalized = graph.op("BatchNormalization", x, *given, mean, var, epsilon=0.0)
    return normalized, graph.op("Reciprocal", graph.op("Sqrt", var))
