"""Reductions and cumulative sums."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Value, same_shape
from portico.ort.compiler.lowerings.creation import full
from portico.ort.compiler.lowerings.registry import lowers_along

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


@lowers_along(aten.sum.dim_IntList, aten.sum.default, op_type="ReduceSum")
@lowers_along(aten.prod.default, aten.prod.dim_int, op_type="ReduceProd")
@lowers_along(aten.mean.dim, aten.mean.default, op_type="ReduceMean")
def accumulated(
    graph: Graph, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, op_type: str
) -> Value:
    if op_type == "ReduceMean" and _is_empty(x):
        return full(graph, graph.out.shape, float("nan"))
    return reduced(graph, op_type, graph.operand(x), dim, keepdim)


def _is_empty(x: Value) -> bool:
    """Return whether ``x`` has no elements: their mean is NaN in torch and 0 in ONNX Runtime."""
    return any(same_shape([dim], [0]) for dim in x.dims)


@lowers_along(aten.amax.default, aten.max.default, kind="Max")
@lowers_along(aten.amin.default, aten.min.default, kind="Min")
def extreme(graph: Graph, x: Value, dim: Any = None, keepdim: bool = False, *, kind: str) -> Value:
    """Return the largest or smallest element, or NaN if there is one, which ONNX Runtime would ignore."""
    if x.dtype is torch.bool:
        return graph.cast(reduced(graph, f"Reduce{kind}", graph.cast(x, torch.int32), dim, keepdim), torch.bool)
    found = reduced(graph, f"Reduce{kind}", x, dim, keepdim)
    if not x.is_float:
        return found
    has_nan = graph.cast(reduced(graph, "ReduceMax", _is_nan(graph, x), dim, keepdim), torch.bool)
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
    has_nan = graph.cast(reduced(graph, "ReduceMax", is_nan, dim, keepdim), torch.bool)
    return graph.op("Where", has_nan, graph.op("ArgMax", is_nan, axis=dim, keepdims=int(keepdim)), index)


@lowers_along(aten.max.dim, kind="Max")
@lowers_along(aten.min.dim, kind="Min")
def extreme_and_index(graph: Graph, x: Value, dim: int, keepdim: bool = False, *, kind: str) -> tuple[Value, Value]:
    return extreme(graph, x, dim, keepdim, kind=kind), index_of_extreme(graph, x, dim, keepdim, kind=kind)


@lowers_along(aten.any.default, aten.any.dim, aten.any.dims, of_all=False)
@lowers_along(aten.all.default, aten.all.dim, aten.all.dims, of_all=True)
def any_or_all(graph: Graph, x: Value, dim: Any = None, keepdim: bool = False, *, of_all: bool) -> Value:
    """Return whether any is true, by counting; all are if none is false."""
    found = graph.cast(x, torch.bool)
    if of_all:
        found = graph.op("Not", found, dtype=torch.bool, shape=x.shape)
    # An empty list of dimensions reduces none.
    if dim != []:
        found = graph.cast(reduced(graph, "ReduceSum", graph.cast(found, torch.int32), dim, keepdim), torch.bool)
    return graph.operand(graph.op("Not", found, dtype=torch.bool) if of_all else found)


@lowers_along(aten.var.correction)
def var(graph: Graph, x: Value, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
    if _is_empty(x):
        return full(graph, graph.out.shape, float("nan"))
    centered = graph.op("Sub", x, reduced(graph, "ReduceMean", x, dim, True))
    squares = graph.op("Mul", centered, centered)
    if correction in (0, 0.0):
        return reduced(graph, "ReduceMean", squares, dim, keepdim)
    ones = graph.op("Expand", graph.operand(1), graph.op("Shape", x))
    count = reduced(graph, "ReduceSum", ones, dim, keepdim)
    free = graph.op("Sub", count, graph.operand(1 if correction is None else correction))
    free = graph.op("Max", free, graph.operand(0))
    return graph.op("Div", reduced(graph, "ReduceSum", squares, dim, keepdim), free)


@lowers_along(aten.cumsum.default)
def cumsum(graph: Graph, x: Value, dim: int, *, dtype: Any = None) -> Value:
    return graph.op("CumSum", graph.operand(x), graph.constant(dim, torch.int64))
