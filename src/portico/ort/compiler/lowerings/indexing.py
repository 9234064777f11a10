"""Operators that move elements: views, slices, joins and paddings; reads and writes by index or by mask."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Operand, Size, Value, same_shape
from portico.ort.compiler.lowerings.registry import lowers, lowers_along

aten = torch.ops.aten
# ONNX Runtime's scatters have no `reduction="add"` for the keys: dtypes to add in instead.
_ADDED_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.int32}
# In `Slice`, past the last element of any dimension.
_END = 2**63 - 1


@lowers(aten.view.default, aten._unsafe_view.default)
def view(graph: Graph, x: Value, size: Sequence[Size]) -> Value:
    shape = graph.out.shape
    # The sizes that the caller passes are in the graph already; the sizes of the result may have to be computed.
    num_symbolic = sum(not isinstance(dim, int) for dim in shape)
    return graph.reshape(x, shape if num_symbolic < 2 or same_shape(x.dims, shape) else size)


@lowers(aten.unsqueeze.default)
def unsqueeze(graph: Graph, x: Value, dim: int) -> Value:
    return graph.op("Unsqueeze", x, graph.axes(dim))


@lowers(aten.squeeze.dims)
def squeeze(graph: Graph, x: Value, dims: Sequence[int]) -> Value:
    ones = [axis for axis in dims if x.rank and same_shape([x.dims[axis]], [1])]
    return graph.op("Squeeze", x, graph.axes(*ones)) if ones else x


@lowers(aten.permute.default)
def permute(graph: Graph, x: Value, dims: Sequence[int]) -> Value:
    return graph.transpose(x, [dim % x.rank for dim in dims])


@lowers(aten.expand.default)
def expand(graph: Graph, x: Value, size: Sequence[Size], *, implicit: bool = False) -> Value:
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
def slice_(
    graph: Graph, x: Value, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> Value:
    if same_shape(x.dims, graph.out.shape):
        return x
    return _slice(graph, x, dim, start, end, step)


def _slice(graph: Graph, x: Value, dim: int, start: Size | None, end: Size | None, step: int) -> Value:
    bounds = [0 if start is None else start, _END if end is None else end]
    first, last = (graph.vector([bound]) for bound in bounds)
    return graph.op("Slice", x, first, last, graph.axes(dim), graph.axes(step))


@lowers(aten.select.int)
def select(graph: Graph, x: Value, dim: int, index: Size) -> Value:
    return graph.op("Gather", x, graph.scalar(index, torch.int64), axis=dim)


@lowers(aten.split_with_sizes.default)
def split_with_sizes(graph: Graph, x: Value, sizes: Sequence[Size], dim: int = 0) -> Any:
    parts = graph.op("Split", x, graph.vector(sizes), outputs=len(sizes), axis=dim)
    return parts if len(sizes) > 1 else (parts,)


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(graph: Graph, x: Value, pad: Sequence[Size], value: Operand = 0) -> Value:
    # Torch lists (before, after) pairs from the last dimension; ONNX all befores, then all afters. All dimensions are
    # listed: ONNX Runtime loses the `axes` input when it moves a transpose past a `Pad`.
    before, after = pad[::2][::-1], pad[1::2][::-1]
    others = [0] * (x.rank - len(before))
    return graph.op("Pad", x, graph.vector([*others, *before, *others, *after]), graph.operand(value))


@lowers(aten.repeat.default)
def repeat(graph: Graph, x: Value, repeats: Sequence[Size]) -> Value:
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
    graph: Graph,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Value:
    if same_shape(x.dims, source.dims):
        return graph.operand(source)
    return _put(graph, x, source, dim, start, end, step)


@lowers(aten.select_scatter.default)
def select_scatter(graph: Graph, x: Value, source: Value, dim: int, index: int) -> Value:
    row = graph.op("Unsqueeze", source, graph.axes(dim))
    return _put(graph, x, row, dim, index, index + 1 if index != -1 else None, 1)


def _put(graph: Graph, x: Value, source: Value, dim: int, start: Size | None, end: Size | None, step: int) -> Value:
    """Return ``x`` with a slice of ``dim`` replaced."""
    dim %= x.rank
    zero, one = graph.constant(0, torch.int64), graph.constant(1, torch.int64)
    every = graph.op("Range", zero, graph.dimension(x, dim), one)
    indices = graph.op("Unsqueeze", _slice(graph, every, 0, start, end, step), graph.axes(-1))
    order = [dim, *(axis for axis in range(x.rank) if axis != dim)]
    rows = graph.op("ScatterND", graph.transpose(x, order), indices, graph.transpose(source, order))
    return graph.transpose(rows, [order.index(axis) for axis in range(x.rank)])


# ---- Indices ----


@lowers(aten.embedding.default)
def embedding(graph: Graph, weight: Value, indices: Value, *_: object, **__: object) -> Value:
    return graph.op("Gather", weight, _not_negative(graph, indices), axis=0)


@lowers_along(aten.gather.default)
def gather(graph: Graph, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    return graph.op("GatherElements", x, _not_negative(graph, index), axis=dim)


@lowers_along(aten.scatter.src)
def scatter_src(graph: Graph, x: Value, dim: int, index: Value, src: Value) -> Value:
    return graph.op("ScatterElements", x, _not_negative(graph, index), _crop_like(graph, src, index), axis=dim)


@lowers_along(aten.scatter.value)
def scatter_value(graph: Graph, x: Value, dim: int, index: Value, value: Operand) -> Value:
    src = graph.op("Expand", graph.operand(value), graph.op("Shape", index))
    return graph.op("ScatterElements", x, _not_negative(graph, index), src, axis=dim)


@lowers_along(aten.scatter_add.default)
def scatter_add(graph: Graph, x: Value, dim: int, index: Value, src: Value) -> Value:
    positions = _not_negative(graph, index)
    return _scatter_add(graph, "ScatterElements", x, positions, _crop_like(graph, src, index), axis=dim)


def _scatter_add(
    graph: Graph, op_type: str, x: Value, positions: Value, updates: Value, *, axis: int | None = None
) -> Value:
    """Add by index, in a dtype that ONNX Runtime has a kernel for."""
    dtype = graph.out.dtype
    wide = _ADDED_IN.get(dtype, dtype)
    x, updates = (graph.cast(Value(value.name, dtype), wide) for value in (x, updates))
    return graph.operand(graph.op(op_type, x, positions, updates, reduction="add", dtype=wide, axis=axis))


def _crop_like(graph: Graph, src: Value, index: Value) -> Value:
    """Cut ``src`` to the size of the index: torch allows it to be larger."""
    if same_shape(src.dims, index.dims):
        return src
    axes = range(src.rank)
    return graph.op("Slice", src, graph.axes(*[0] * src.rank), graph.op("Shape", index), graph.axes(*axes))


@lowers_along(aten.index_select.default)
def index_select(graph: Graph, x: Value, dim: int, index: Value) -> Value:
    positions = _not_negative(graph, index)
    rows = positions if index.rank else graph.op("Unsqueeze", positions, graph.axes(0))
    return graph.op("Gather", x, rows, axis=dim)


def _not_negative(graph: Graph, index: Value) -> Value:
    """Return an index in int64 in which negative numbers are out of range.

    ONNX would count them from the end where torch raises an error; this way ONNX Runtime raises one too.
    """
    positions = graph.cast(index, torch.int64)
    is_negative = graph.op("Less", positions, graph.constant(0, torch.int64))
    return graph.op("Where", is_negative, graph.constant(torch.iinfo(torch.int64).max, torch.int64), positions)


@lowers(aten.index.Tensor)
def index(graph: Graph, x: Value, indices: Sequence[Value | None]) -> Value:
    order, rest, coordinates, first = _coordinates(graph, x, indices)
    taken = graph.op("GatherND", graph.transpose(x, order), coordinates)
    num_broadcast = len(graph.out.shape) - len(rest)
    if first == 0:
        return taken
    # Torch keeps the dimensions of adjacent indices in place, here behind the `first` ones that are not indexed.
    back = [*range(num_broadcast, num_broadcast + first), *range(num_broadcast)]
    back += range(num_broadcast + first, num_broadcast + len(rest))
    return graph.transpose(taken, back)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    graph: Graph, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    indices = _positions(graph, indices)
    order, rest, coordinates, first = _coordinates(graph, x, indices)
    rank = max(index.rank for index in indices if index is not None)
    whole = graph.transpose(x, order)
    sizes = [graph.op("Shape", coordinates, start=0, end=rank)]
    if rest:
        sizes.append(graph.op("Shape", whole, start=x.rank - len(rest)))
    target = graph.op("Concat", *sizes, axis=0)
    if first:
        source_order = [*range(first, first + rank), *range(first), *range(first + rank, rank + len(rest))]
        missing = rank + len(rest) - values.rank
        values = graph.reshape(values, [*[1] * missing, *values.dims]) if missing else values
        values = graph.transpose(values, source_order)
    updates = graph.op("Expand", graph.operand(values), target)
    arguments = ("ScatterND", whole, coordinates, updates)
    put = _scatter_add(graph, *arguments) if accumulate else graph.op(*arguments)
    return graph.transpose(put, [order.index(axis) for axis in range(x.rank)])


def _positions(graph: Graph, indices: Sequence[Value | None]) -> list[Value | None]:
    """Replace each mask by the positions at which it is true, one index for each of its dimensions."""
    positions: list[Value | None] = []
    for index in indices:
        if index is None or index.dtype is not torch.bool:
            positions.append(index)
            continue
        true = graph.op("NonZero", index)
        shape = (graph.dimension(true, 1),)
        axes = (graph.constant(axis, torch.int64) for axis in range(index.rank))
        positions += [graph.op("Gather", true, axis, axis=0, dtype=torch.int64, shape=shape) for axis in axes]
    return positions


def _coordinates(graph: Graph, x: Value, indices: Sequence[Value | None]) -> tuple[list[int], list[int], Value, int]:
    """Return the arguments of ``GatherND`` and ``ScatterND``.

    Returns:
        The permutation that brings the indexed dimensions to the front, the dimensions that are not indexed, the
        coordinates ``[..., number of indices]``, and how many unindexed dimensions precede in torch's result.
    """
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    rest = [axis for axis in range(x.rank) if axis not in indexed]
    given = [index for index in indices if index is not None]
    common = _broadcast([position.dims for position in given])
    columns = []
    for axis, position in zip(indexed, given, strict=True):
        wide = graph.op("Expand", graph.cast(position, torch.int64), graph.vector(common))
        size = graph.scalar(x.dims[axis], torch.int64)
        # ONNX Runtime's GatherND accepts negative indices; ScatterND with a reduction does not on every device.
        is_negative = graph.op("Less", wide, graph.constant(0, torch.int64))
        wrapped = graph.op("Where", is_negative, graph.op("Add", wide, size), wide)
        columns.append(graph.op("Unsqueeze", wrapped, graph.axes(-1)))
    coordinates = graph.op("Concat", *columns, axis=-1) if len(columns) > 1 else columns[0]
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    return [*indexed, *rest], rest, coordinates, indexed[0] if adjacent else 0


def _broadcast(shapes: Sequence[Sequence[Size]]) -> list[Size]:
    """Return the broadcast shape; of two symbols the first, since torch has checked that they are equal."""
    rank = max(len(shape) for shape in shapes)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    columns = zip(*padded, strict=True)
    return [next((dim for dim in dims if not isinstance(dim, int) or dim != 1), 1) for dims in columns]
