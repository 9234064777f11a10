"""Operators that only move elements: views, slices, joins, paddings and writes to slices."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Value, same_shape
from portico.ort.compiler.lowerings.registry import lowers, lowers_along

aten = torch.ops.aten
# In `Slice`, past the last element of any dimension.
_END = 2**63 - 1


@lowers(aten.view.default, aten._unsafe_view.default)
def view(graph: Graph, x: Value, size: Sequence[Any]) -> Value:
    shape = graph.out.shape
    # The sizes passed by the caller are in the graph already; those of the result may have to be computed.
    num_symbolic = sum(not isinstance(dim, int) for dim in shape)
    return graph.reshape(x, shape if num_symbolic < 2 or same_shape(x.dims, shape) else size)


@lowers(aten.unsqueeze.default)
def unsqueeze(graph: Graph, x: Value, dim: int) -> Value:
    return graph.op("Unsqueeze", x, graph.axes(dim))


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(graph: Graph, x: Value, dim: Any = None) -> Value:
    dims = range(x.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    ones = [axis for axis in dims if x.rank and same_shape([x.dims[axis]], [1])]
    return graph.op("Squeeze", x, graph.axes(*ones)) if ones else x


@lowers(aten.permute.default)
def permute(graph: Graph, x: Value, dims: Sequence[int]) -> Value:
    return graph.transpose(x, [dim % x.rank for dim in dims])


@lowers_along(aten.transpose.int)
def transpose(graph: Graph, x: Value, first: int, second: int) -> Value:
    order = list(range(x.rank))
    order[first], order[second] = order[second], order[first]
    return graph.transpose(x, order)


@lowers(aten.t.default)
def t(graph: Graph, x: Value) -> Value:
    return graph.transpose(x, list(range(x.rank))[::-1])


@lowers(aten.expand.default)
def expand(graph: Graph, x: Value, size: Sequence[Any], *, implicit: bool = False) -> Value:
    if same_shape(x.dims, graph.out.shape):
        return x
    # Torch keeps a dimension by -1, ONNX by 1.
    kept = [1 if isinstance(dim, int) and dim == -1 else dim for dim in size]
    return graph.op("Expand", x, graph.vector(kept))


@lowers(aten.cat.default)
def cat(graph: Graph, tensors: Sequence[Value], dim: int = 0) -> Value:
    # Torch accepts an empty vector among tensors of any rank.
    kept = [tensor for tensor in tensors if not (tensor.rank == 1 and same_shape(tensor.dims, (0,)))]
    if not kept:
        return tensors[0]
    return graph.op("Concat", *map(graph.operand, kept), axis=dim)


@lowers(aten.slice.Tensor)
def slice_(graph: Graph, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    if same_shape(x.dims, graph.out.shape):
        return x
    return _sliced(graph, x, dim, start, end, step)


def _sliced(graph: Graph, x: Value, dim: int, start: Any, end: Any, step: int) -> Value:
    bounds = [0 if start is None else start, _END if end is None else end]
    first, last = (graph.vector([bound]) for bound in bounds)
    return graph.op("Slice", x, first, last, graph.axes(dim), graph.axes(step))


@lowers(aten.select.int)
def select(graph: Graph, x: Value, dim: int, index: Any) -> Value:
    return graph.op("Gather", x, graph.scalar(index, torch.int64), axis=dim)


@lowers(aten.split_with_sizes.default)
def split_with_sizes(graph: Graph, x: Value, sizes: Sequence[Any], dim: int = 0) -> Any:
    parts = graph.op("Split", x, graph.vector(sizes), outputs=len(sizes), axis=dim)
    return parts if len(sizes) > 1 else (parts,)


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(graph: Graph, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    # Torch lists (before, after) pairs from the last dimension; ONNX all befores, then all afters.
    return padded(graph, x, pad[::2][::-1], pad[1::2][::-1], graph.operand(value))


def padded(graph: Graph, x: Value, before: Sequence[Any], after: Sequence[Any], value: Value | None = None) -> Value:
    """Pad, or with negative numbers cut, the last dimensions of ``x``.

    All dimensions are listed: ONNX Runtime loses the ``axes`` input when it moves a transpose past a ``Pad``.
    """
    others = [0] * (x.rank - len(before))
    return graph.op("Pad", x, graph.vector([*others, *before, *others, *after]), value)


@lowers(aten.repeat.default)
def repeat(graph: Graph, x: Value, repeats: Sequence[Any]) -> Value:
    ones = [1] * (len(repeats) - x.rank)
    return graph.op("Tile", graph.reshape(x, [*ones, *x.dims]), graph.vector(repeats))


@lowers_along(aten.flip.default)
def flip(graph: Graph, x: Value, dims: Sequence[int]) -> Value:
    if not dims:
        return x
    num_dims = len(dims)
    backwards, before_first = graph.axes(*[-1] * num_dims), graph.axes(*[-_END] * num_dims)
    return graph.op("Slice", x, backwards, before_first, graph.axes(*dims), backwards)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    graph: Graph, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    if same_shape(x.dims, source.dims):
        return graph.operand(source)
    return _put(graph, x, source, dim, start, end, step)


@lowers(aten.select_scatter.default)
def select_scatter(graph: Graph, x: Value, source: Value, dim: int, index: int) -> Value:
    row = graph.op("Unsqueeze", source, graph.axes(dim))
    return _put(graph, x, row, dim, index, index + 1 if index != -1 else None, 1)


def _put(graph: Graph, x: Value, source: Value, dim: int, start: Any, end: Any, step: int) -> Value:
    """Return ``x`` with a slice of ``dim`` replaced."""
    dim %= x.rank
    zero, one = graph.constant(0, torch.int64), graph.constant(1, torch.int64)
    every = graph.op("Range", zero, graph.dimension(x, dim), one)
    indices = graph.op("Unsqueeze", _sliced(graph, every, 0, start, end, step), graph.axes(-1))
    order = [dim, *(axis for axis in range(x.rank) if axis != dim)]
    rows = graph.op("ScatterND", graph.transpose(x, order), indices, graph.transpose(source, order))
    return graph.transpose(rows, [order.index(axis) for axis in range(x.rank)])
