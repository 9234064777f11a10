"""Operators that only move elements: views, slices, joins, paddings and writes to slices."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Value, same_shape
from portico.ort.compiler.lowerings.registry import Context, lowers, numbers_as_vectors, promoted

aten = torch.ops.aten
# In `Slice`, past the last element of any dimension.
_END = 2**63 - 1


@lowers(aten.view.default, aten._unsafe_view.default)
def view(context: Context, x: Value, size: Sequence[Any]) -> Value:
    shape = context.out.shape
    # The sizes passed by the caller are in the graph already; those of the result may have to be computed.
    num_symbolic = sum(not isinstance(dim, int) for dim in shape)
    return context.graph.reshape(x, shape if num_symbolic < 2 or same_shape(x.dims, shape) else size)


@lowers(aten.unsqueeze.default)
def unsqueeze(context: Context, x: Value, dim: int) -> Value:
    return context.graph.op("Unsqueeze", x, context.graph.axes(dim))


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(context: Context, x: Value, dim: Any = None) -> Value:
    dims = range(x.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    ones = [axis for axis in dims if x.rank and same_shape([x.dims[axis]], [1])]
    return context.graph.op("Squeeze", x, context.graph.axes(*ones)) if ones else x


@lowers(aten.permute.default)
def permute(context: Context, x: Value, dims: Sequence[int]) -> Value:
    return context.graph.transpose(x, [dim % x.rank for dim in dims])


@lowers(aten.transpose.int)
@numbers_as_vectors
def transpose(context: Context, x: Value, first: int, second: int) -> Value:
    order = list(range(x.rank))
    order[first], order[second] = order[second], order[first]
    return context.graph.transpose(x, order)


@lowers(aten.t.default)
def t(context: Context, x: Value) -> Value:
    return context.graph.transpose(x, list(range(x.rank))[::-1])


@lowers(aten.expand.default)
def expand(context: Context, x: Value, size: Sequence[Any], *, implicit: bool = False) -> Value:
    if same_shape(x.dims, context.out.shape):
        return x
    # Torch keeps a dimension by -1, ONNX by 1.
    kept = [1 if isinstance(dim, int) and dim == -1 else dim for dim in size]
    return context.graph.op("Expand", x, context.graph.vector(kept))


@lowers(aten.cat.default)
def cat(context: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    # Torch accepts an empty vector among tensors of any rank.
    kept = [tensor for tensor in tensors if not (tensor.rank == 1 and same_shape(tensor.dims, (0,)))]
    if not kept:
        return tensors[0]
    return context.graph.op("Concat", *promoted(context, context.out.dtype, *kept), axis=dim)


@lowers(aten.slice.Tensor)
def slice_(context: Context, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    if same_shape(x.dims, context.out.shape):
        return x
    graph = context.graph
    bounds = [0 if start is None else start, _END if end is None else end]
    first, last = (graph.vector([bound]) for bound in bounds)
    return graph.op("Slice", x, first, last, graph.axes(dim), graph.axes(step))


@lowers(aten.select.int)
def select(context: Context, x: Value, dim: int, index: Any) -> Value:
    return context.graph.op("Gather", x, context.graph.scalar(index, torch.int64), axis=dim)


@lowers(aten.split_with_sizes.default)
def split_with_sizes(context: Context, x: Value, sizes: Sequence[Any], dim: int = 0) -> Any:
    parts = context.graph.op("Split", x, context.graph.vector(sizes), outputs=len(sizes), axis=dim)
    return parts if len(sizes) > 1 else (parts,)


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(context: Context, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    # Torch lists (before, after) pairs from the last dimension; ONNX all befores, then all afters.
    return padded(context.graph, x, pad[::2][::-1], pad[1::2][::-1], context.graph.scalar(value, context.out.dtype))


def padded(graph: Graph, x: Value, before: Sequence[Any], after: Sequence[Any], value: Value | None = None) -> Value:
    """Pad, or with negative numbers cut, the last dimensions of ``x``.

    All dimensions are listed: ONNX Runtime loses the ``axes`` input when it moves a transpose past a ``Pad``.
    """
    others = [0] * (x.rank - len(before))
    return graph.op("Pad", x, graph.vector([*others, *before, *others, *after]), value)


@lowers(aten.repeat.default)
def repeat(context: Context, x: Value, repeats: Sequence[Any]) -> Value:
    graph = context.graph
    ones = [1] * (len(repeats) - x.rank)
    return graph.op("Tile", graph.reshape(x, [*ones, *x.dims]), graph.vector(repeats))


@lowers(aten.flip.default)
@numbers_as_vectors
def flip(context: Context, x: Value, dims: Sequence[int]) -> Value:
    if not dims:
        return x
    graph, num_dims = context.graph, len(dims)
    backwards, before_first = graph.axes(*[-1] * num_dims), graph.axes(*[-_END] * num_dims)
    return graph.op("Slice", x, backwards, before_first, graph.axes(*dims), backwards)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    context: Context, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    if same_shape(x.dims, source.dims):
        return context.graph.cast(source, context.out.dtype)
    return _put(context, x, source, dim, slice_bounds=(start, end, step))


@lowers(aten.select_scatter.default)
def select_scatter(context: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    row = context.graph.op("Unsqueeze", source, context.graph.axes(dim))
    end = index + 1 if index != -1 else None
    return _put(context, x, row, dim, slice_bounds=(index, end, 1))


def _put(context: Context, x: Value, source: Value, dim: int, slice_bounds: tuple[Any, Any, int]) -> Value:
    """Return ``x`` with a slice of ``dim`` replaced."""
    graph = context.graph
    start, end, step = slice_bounds
    dim %= x.rank
    size = graph.op("Shape", x, start=dim, end=dim + 1)
    zero, one = graph.constant(0, torch.int64), graph.constant(1, torch.int64)
    every = graph.op("Range", zero, graph.op("Squeeze", size, graph.axes(0)), one)
    bounds = [0 if start is None else start, _END if end is None else end]
    first, last = (graph.vector([bound]) for bound in bounds)
    chosen = graph.op("Slice", every, first, last, graph.axes(0), graph.axes(step))
    order = [dim, *(axis for axis in range(x.rank) if axis != dim)]
    back = [order.index(axis) for axis in range(x.rank)]
    indices = graph.op("Unsqueeze", chosen, graph.axes(-1))
    rows = graph.op("ScatterND", graph.transpose(x, order), indices, graph.transpose(source, order))
    return graph.transpose(rows, back)
