"""Operators that read and write by index or by mask."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Value, same_shape
from portico.ort.compiler.lowerings.creation import filled
from portico.ort.compiler.lowerings.registry import Context, lowers, numbers_as_vectors, promoted

aten = torch.ops.aten
# ONNX Runtime's scatters have no `reduction="add"` for the keys: dtypes to add in instead.
_ADDED_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.int32}


@lowers(aten.embedding.default)
def embedding(context: Context, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return context.graph.op("Gather", weight, _not_negative(context, indices), axis=0)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    context: Context, grad: Value, indices: Value, num_weights: Any, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    graph = context.graph
    rows = graph.op("Unsqueeze", indices, graph.axes(-1))
    if scale_grad_by_freq:
        grad = graph.op("Div", grad, _frequencies(context, indices, rows, num_weights))
    if padding_idx >= 0:
        padded = graph.op("Equal", rows, graph.constant(padding_idx, indices.dtype or torch.int64))
        grad = graph.op("Where", padded, graph.constant(0, context.out.dtype), grad)
    zeros = filled(context, [num_weights, context.out.shape[1]], 0)
    return _added(context, "ScatterND", zeros, graph.cast(rows, torch.int64), grad)


def _frequencies(context: Context, indices: Value, rows: Value, num_weights: Any) -> Value:
    """Return how often each index occurs among the indices, ``[..., 1]``."""
    graph = context.graph
    ones = graph.op("Expand", graph.constant(1, context.out.dtype), graph.op("Shape", indices))
    zeros = filled(context, [num_weights], 0)
    counts = _added(context, "ScatterND", zeros, graph.cast(rows, torch.int64), ones)
    return graph.op("Unsqueeze", graph.op("Gather", counts, indices, axis=0), graph.axes(-1))


@lowers(aten.gather.default)
@numbers_as_vectors
def gather(context: Context, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    return context.graph.op("GatherElements", x, _not_negative(context, index), axis=dim)


@lowers(aten.scatter.src)
@numbers_as_vectors
def scatter_src(context: Context, x: Value, dim: int, index: Value, src: Value) -> Value:
    positions, elements = _not_negative(context, index), _as_large_as(context, src, index)
    return context.graph.op("ScatterElements", x, positions, elements, axis=dim)


@lowers(aten.scatter.value)
@numbers_as_vectors
def scatter_value(context: Context, x: Value, dim: int, index: Value, value: Any) -> Value:
    graph = context.graph
    src = graph.op("Expand", graph.scalar(value, context.out.dtype), graph.op("Shape", index))
    return graph.op("ScatterElements", x, _not_negative(context, index), src, axis=dim)


@lowers(aten.scatter_add.default)
@numbers_as_vectors
def scatter_add(context: Context, x: Value, dim: int, index: Value, src: Value) -> Value:
    positions = _not_negative(context, index)
    return _added(context, "ScatterElements", x, positions, _as_large_as(context, src, index), axis=dim)


def _added(context: Context, op_type: str, x: Value, positions: Value, updates: Value, **attributes: Any) -> Value:
    """Add by index, in a dtype that ONNX Runtime has a kernel for."""
    graph, dtype = context.graph, context.out.dtype
    wide = _ADDED_IN.get(dtype, dtype)
    x, updates = (graph.cast(Value(value.name, dtype), wide) for value in (x, updates))
    total = graph.op(op_type, x, positions, updates, reduction="add", **attributes)
    return graph.cast(Value(total.name, wide), dtype)


def _as_large_as(context: Context, src: Value, index: Value) -> Value:
    """Cut ``src`` to the size of the index: torch allows it to be larger."""
    if same_shape(src.dims, index.dims):
        return src
    graph, axes = context.graph, range(src.rank)
    return graph.op("Slice", src, graph.axes(*[0] * src.rank), graph.op("Shape", index), graph.axes(*axes))


@lowers(aten.index_select.default)
@numbers_as_vectors
def index_select(context: Context, x: Value, dim: int, index: Value) -> Value:
    graph = context.graph
    positions = _not_negative(context, index)
    rows = positions if index.rank else graph.op("Unsqueeze", positions, graph.axes(0))
    return graph.op("Gather", x, rows, axis=dim)


def _not_negative(context: Context, index: Value) -> Value:
    """Return an index in int64 in which negative numbers are out of range.

    ONNX would count them from the end where torch raises an error; this way ONNX Runtime raises one too.
    """
    graph = context.graph
    positions = graph.cast(index, torch.int64)
    is_negative = graph.op("Less", positions, graph.constant(0, torch.int64))
    return graph.op("Where", is_negative, graph.constant(torch.iinfo(torch.int64).max, torch.int64), positions)


@lowers(aten.index.Tensor)
def index(context: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    graph = context.graph
    order, rest, coordinates, first = _coordinates(context, x, indices)
    taken = graph.op("GatherND", graph.transpose(x, order), coordinates)
    num_broadcast = len(context.out.shape) - len(rest)
    if first == 0:
        return taken
    # Torch keeps the dimensions of adjacent indices in place, here behind the `first` ones that are not indexed.
    back = [*range(num_broadcast, num_broadcast + first), *range(num_broadcast)]
    back += range(num_broadcast + first, num_broadcast + len(rest))
    return graph.transpose(taken, back)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    context: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    graph = context.graph
    indices = _positions(context, indices)
    order, rest, coordinates, first = _coordinates(context, x, indices)
    rank = max(index.rank for index in indices if index is not None)
    target = graph.op(
        "Concat",
        graph.op("Shape", coordinates, start=0, end=rank),
        *([graph.op("Shape", graph.transpose(x, order), start=len(order) - len(rest))] if rest else []),
        axis=0,
    )
    if first:
        source_order = [*range(first, first + rank), *range(first), *range(first + rank, rank + len(rest))]
        missing = rank + len(rest) - values.rank
        values = graph.reshape(values, [*[1] * missing, *values.dims]) if missing else values
        values = graph.transpose(values, source_order)
    updates = graph.op("Expand", *promoted(context, context.out.dtype, values), target)
    whole = graph.transpose(x, order)
    if accumulate:
        put = _added(context, "ScatterND", whole, coordinates, updates)
    else:
        put = graph.op("ScatterND", whole, coordinates, updates)
    return graph.transpose(put, [order.index(axis) for axis in range(x.rank)])


def _positions(context: Context, indices: Sequence[Value | None]) -> list[Value | None]:
    """Replace each mask by the positions at which it is true, one index for each of its dimensions."""
    graph = context.graph
    positions: list[Value | None] = []
    for index in indices:
        if index is None or index.dtype is not torch.bool:
            positions.append(index)
            continue
        true = graph.op("NonZero", index)
        count: Any = Value(graph.op("Squeeze", graph.op("Shape", true, start=1), graph.axes(0)).name, torch.int64, ())
        rows = [graph.op("Gather", true, graph.scalar(axis, torch.int64), axis=0) for axis in range(index.rank)]
        positions += [Value(row.name, torch.int64, (count,)) for row in rows]
    return positions


def _coordinates(
    context: Context, x: Value, indices: Sequence[Value | None]
) -> tuple[list[int], list[int], Value, int]:
    """Return the arguments of ``GatherND`` and ``ScatterND``.

    Returns:
        The permutation that brings the indexed dimensions to the front, the dimensions that are not indexed, the
        coordinates ``[..., number of indices]``, and how many unindexed dimensions precede in torch's result.
    """
    graph = context.graph
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


def _broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the broadcast shape; of two symbols the first, since torch has checked that they are equal."""
    rank = max(len(shape) for shape in shapes)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    columns = zip(*padded, strict=True)
    return [next((dim for dim in dims if not isinstance(dim, int) or dim != 1), 1) for dims in columns]
