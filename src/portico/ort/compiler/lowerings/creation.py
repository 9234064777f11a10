"""Operators that create, convert or copy tensors."""

from collections.abc import Sequence

import torch

from portico.ort.compiler.graph import Graph, Number, Operand, Size, Value
from portico.ort.compiler.lowerings.registry import lowers

aten, prims = torch.ops.aten, torch.ops.prims


@lowers(aten.full.default)
# Its content is undefined; zeros make results reproducible.
@lowers(aten.empty.memory_format, fill_value=0)
def full(graph: Graph, size: Sequence[Size], fill_value: Operand, **_: object) -> Value:
    value = graph.operand(fill_value)
    return graph.op("Expand", value, graph.vector(size)) if len(size) else value


@lowers(aten.empty_permuted.default, aten.empty_strided.default)
def empty_in_an_order(graph: Graph, size: Sequence[Size], order: Sequence[object], **_: object) -> Value:
    return full(graph, size, 0)


@lowers(aten.full_like.default)
def full_like(graph: Graph, x: Value, fill_value: Operand, **_: object) -> Value:
    if all(isinstance(dim, int) for dim in x.shape or (None,)):
        return full(graph, x.dims, fill_value)
    return graph.op("Expand", graph.operand(fill_value), graph.op("Shape", x))


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(graph: Graph, *bounds: Number, **_: object) -> Value:
    start, end = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = bounds[2] if len(bounds) == 3 else 1
    if any(isinstance(number, float) for number in (start, end, step)):
        return iota(graph, graph.out.shape[0], start=start, step=step)
    limits = (graph.scalar(number, torch.int64) for number in (start, end, step))
    return graph.operand(graph.op("Range", *limits, dtype=torch.int64))


@lowers(prims.iota.default)
def iota(graph: Graph, length: Size, *, start: Number, step: Number, **_: object) -> Value:
    """Return ``start + step * i``, multiplied as in torch: repeated sums of floats would drift."""
    dtype = torch.int64 if isinstance(start, int) and isinstance(step, int) else torch.float64
    limits = (graph.scalar(number, torch.int64) for number in (0, length, 1))
    indices = graph.cast(graph.op("Range", *limits, dtype=torch.int64), dtype)
    steps = graph.op("Mul", indices, graph.scalar(step, dtype))
    return graph.operand(graph.op("Add", steps, graph.scalar(start, dtype), dtype=dtype))


@lowers(aten._to_copy.default, aten.scalar_tensor.default, prims.convert_element_type.default)
def cast(graph: Graph, x: Operand, *_: object, **__: object) -> Value:
    return graph.operand(x)


@lowers(aten.alias.default, aten.clone.default, aten.lift_fresh_copy.default)
def same(graph: Graph, x: Value, **_: object) -> Value:
    return x


@lowers(aten.copy.default)
def copy(graph: Graph, destination: Value, source: Value, non_blocking: bool = False) -> Value:
    return graph.op("Expand", graph.operand(source), graph.op("Shape", destination))
