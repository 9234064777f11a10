"""Operators that create, convert or copy tensors."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Value
from portico.ort.compiler.lowerings.registry import lowers

aten, prims = torch.ops.aten, torch.ops.prims


@lowers(aten.full.default)
# Its content is undefined; zeros make results reproducible.
@lowers(aten.empty.memory_format, fill_value=0)
def full(graph: Graph, size: Sequence[Any], fill_value: Any, **_: Any) -> Value:
    value = graph.operand(fill_value)
    return graph.op("Expand", value, graph.vector(size)) if len(size) else value


@lowers(aten.empty_permuted.default, aten.empty_strided.default)
def empty_in_an_order(graph: Graph, size: Sequence[Any], order: Sequence[Any], **_: Any) -> Value:
    return full(graph, size, 0)


@lowers(aten.full_like.default)
def full_like(graph: Graph, x: Value, fill_value: Any, **_: Any) -> Value:
    if all(isinstance(dim, int) for dim in x.shape or (None,)):
        return full(graph, x.dims, fill_value)
    return graph.op("Expand", graph.operand(fill_value), graph.op("Shape", x))


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(graph: Graph, *bounds: Any, **_: Any) -> Value:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
    if any(isinstance(number, float) for number in (start, end, step)):
        return iota(graph, graph.out.shape[0], start=start, step=step)
    limits = (graph.scalar(number, torch.int64) for number in (start, end, step))
    return graph.operand(graph.op("Range", *limits, dtype=torch.int64))


@lowers(prims.iota.default)
def iota(graph: Graph, length: Any, *, start: Any, step: Any, **_: Any) -> Value:
    """Return ``start + step * i``, multiplied as in torch: repeated sums of floats would drift."""
    dtype = torch.int64 if isinstance(start, int) and isinstance(step, int) else torch.float64
    limits = (graph.scalar(number, torch.int64) for number in (0, length, 1))
    indices = graph.cast(graph.op("Range", *limits, dtype=torch.int64), dtype)
    steps = graph.op("Mul", indices, graph.scalar(step, dtype))
    return graph.operand(graph.op("Add", steps, graph.scalar(start, dtype), dtype=dtype))


@lowers(aten._to_copy.default, aten.scalar_tensor.default, prims.convert_element_type.default)
def converted(graph: Graph, x: Any, *_: Any, **__: Any) -> Value:
    return graph.operand(x)


@lowers(aten.alias.default, aten.clone.default, aten.lift_fresh_copy.default)
def same(graph: Graph, x: Value, **_: Any) -> Value:
    return x


@lowers(aten.copy.default)
def copy(graph: Graph, destination: Value, source: Value, non_blocking: bool = False) -> Value:
    return graph.op("Expand", graph.operand(source), graph.op("Shape", destination))
