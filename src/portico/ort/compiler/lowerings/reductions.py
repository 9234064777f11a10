"""Reductions and cumulative sums."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Value, same_shape
from portico.ort.compiler.lowerings.creation import filled
from portico.ort.compiler.lowerings.registry import Context, lowers, numbers_as_vectors

aten = torch.ops.aten


def reduced(
    graph: Graph, op_type: str, x: Value, dims: Sequence[int] | int | None = None, keepdim: bool = False
) -> Value:
    """Return a reduction of ``x`` over ``dims``; ``None`` or an empty list means all."""
    chosen = [dims] if isinstance(dims, int) else list(dims or ())
    if x.shape is not None:
        # ONNX Runtime does not accept negative axes for an empty tensor.
        chosen = [axis % x.rank for axis in chosen]
    axes = graph.axes(*chosen) if chosen else None
    return graph.op(op_type, x, axes, keepdims=int(keepdim))


@lowers(aten.sum.dim_IntList, aten.sum.default)
@numbers_as_vectors
def sum_(context: Context, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduced(context.graph, "ReduceSum", context.graph.cast(x, context.out.dtype), dim, keepdim)


@lowers(aten.mean.dim, aten.mean.default)
@numbers_as_vectors
def mean(context: Context, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    graph, out = context.graph, context.out
    if _is_empty(x):
        return filled(context, out.shape, float("nan"))
    return reduced(graph, "ReduceMean", graph.cast(x, out.dtype), dim, keepdim)


def _is_empty(x: Value) -> bool:
    """Return whether ``x`` has no elements: their mean is NaN in torch and 0 in ONNX Runtime."""
    return any(same_shape([dim], [0]) for dim in x.dims)


def _register_extremes(name: str, extreme: str, index: str) -> None:
    """Register ``amax``, ``max``, ``argmax`` and ``max`` along a dimension, or those of the minimum."""

    @lowers(getattr(aten, f"a{name}").default, getattr(aten, name).default)
    @numbers_as_vectors
    def values(context: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        return _extreme(context, extreme, x, dim, keepdim)

    @lowers(getattr(aten, f"arg{name}").default)
    @numbers_as_vectors
    def indices(context: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        return _index_of(context, index, x, dim, keepdim)

    @lowers(getattr(aten, name).dim)
    @numbers_as_vectors
    def both(context: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        return _extreme(context, extreme, x, dim, keepdim), _index_of(context, index, x, dim, keepdim)


_register_extremes("max", "ReduceMax", "ArgMax")
_register_extremes("min", "ReduceMin", "ArgMin")


def _extreme(context: Context, op_type: str, x: Value, dim: Any, keepdim: bool) -> Value:
    """Return the largest or smallest element, or NaN if there is one, which ONNX Runtime would ignore."""
    graph = context.graph
    if x.dtype is torch.bool:
        return graph.cast(reduced(graph, op_type, graph.cast(x, torch.int32), dim, keepdim), torch.bool)
    extreme = reduced(graph, op_type, x, dim, keepdim)
    if not x.is_float:
        return extreme
    has_nan = graph.cast(reduced(graph, "ReduceMax", _is_nan(graph, x), dim, keepdim), torch.bool)
    return graph.op("Where", has_nan, graph.constant(float("nan"), x.dtype or context.out.dtype), extreme)


def _is_nan(graph: Graph, x: Value) -> Value:
    """Return 1 where ``x`` is NaN and 0 elsewhere: ONNX Runtime has no reductions of booleans."""
    is_nan = Value(graph.op("IsNaN", x).name, torch.bool, x.shape)
    return graph.cast(is_nan, torch.int32)


@lowers(aten.prod.default, aten.prod.dim_int)
@numbers_as_vectors
def prod(context: Context, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduced(context.graph, "ReduceProd", context.graph.cast(x, context.out.dtype), dim, keepdim)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
@numbers_as_vectors
def any_(context: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    truth = context.graph.cast(x, torch.bool)
    return context.graph.cast(_any(context, truth, dim, keepdim), context.out.dtype)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
@numbers_as_vectors
def all_(context: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    graph = context.graph
    is_false = Value(graph.op("Not", graph.cast(x, torch.bool)).name, torch.bool, x.shape)
    are_all = Value(graph.op("Not", _any(context, is_false, dim, keepdim)).name, torch.bool)
    return graph.cast(are_all, context.out.dtype)


def _any(context: Context, truth: Value, dim: Any, keepdim: bool) -> Value:
    """Return whether any is true, by counting; an empty list of dimensions reduces none."""
    if dim == []:
        return truth
    number = reduced(context.graph, "ReduceSum", context.graph.cast(truth, torch.int32), dim, keepdim)
    return context.graph.cast(Value(number.name, torch.int32), torch.bool)


def _index_of(context: Context, op_type: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    graph = context.graph
    if dim is None:
        flat = Value(graph.op("Reshape", x, graph.constant([-1], torch.int64)).name, x.dtype)
        return graph.reshape(_index_along(graph, op_type, flat, 0, False), context.out.shape)
    return _index_along(graph, op_type, x, dim, keepdim)


def _index_along(graph: Graph, op_type: str, x: Value, dim: int, keepdim: bool) -> Value:
    """Return the index of the extreme, or of the first NaN if there is one, as torch does."""
    x = graph.cast(x, torch.int32) if x.dtype is torch.bool else x
    index = graph.op(op_type, x, axis=dim, keepdims=int(keepdim))
    if not x.is_float:
        return index
    is_nan = _is_nan(graph, x)
    has_nan = graph.cast(reduced(graph, "ReduceMax", is_nan, dim, keepdim), torch.bool)
    return graph.op("Where", has_nan, graph.op("ArgMax", is_nan, axis=dim, keepdims=int(keepdim)), index)


@lowers(aten.var.correction)
@numbers_as_vectors
def var(context: Context, x: Value, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
    graph, dtype = context.graph, context.out.dtype
    if _is_empty(x):
        return filled(context, context.out.shape, float("nan"))
    centered = graph.op("Sub", x, reduced(graph, "ReduceMean", x, dim, True))
    squares = graph.op("Mul", centered, centered)
    if correction in (0, 0.0):
        return reduced(graph, "ReduceMean", squares, dim, keepdim)
    ones = graph.op("Expand", graph.constant(1, dtype), graph.op("Shape", x))
    count = reduced(graph, "ReduceSum", ones, dim, keepdim)
    free = graph.op("Sub", count, graph.scalar(1 if correction is None else correction, dtype))
    free = graph.op("Max", free, graph.constant(0, dtype))
    return graph.op("Div", reduced(graph, "ReduceSum", squares, dim, keepdim), free)


@lowers(aten.cumsum.default)
@numbers_as_vectors
def cumsum(context: Context, x: Value, dim: int, *, dtype: Any = None) -> Value:
    graph = context.graph
    numbers = graph.cast(x, context.out.dtype)
    return graph.op("CumSum", numbers, graph.constant(dim, torch.int64))
