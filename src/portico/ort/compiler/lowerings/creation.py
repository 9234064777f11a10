"""Operators that create, convert or copy tensors."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Value
from portico.ort.compiler.lowerings.registry import Context, lowers

aten = torch.ops.aten


def filled(context: Context, shape: Sequence[Any], number: Any) -> Value:
    """Return a tensor of ``shape`` filled with ``number``."""
    graph = context.graph
    value = graph.scalar(number, context.out.dtype)
    return graph.op("Expand", value, graph.vector(shape)) if len(shape) else value


def filled_like(context: Context, x: Value, number: Any) -> Value:
    """Return a tensor of the shape of ``x`` filled with ``number``."""
    graph = context.graph
    if all(isinstance(dim, int) for dim in x.shape or (None,)):
        return filled(context, x.dims, number)
    return graph.op("Expand", graph.scalar(number, context.out.dtype), graph.op("Shape", x))


@lowers(aten.full.default)
def full(context: Context, size: Sequence[Any], fill_value: Any, **_: Any) -> Value:
    return filled(context, size, fill_value)


@lowers(aten.full_like.default, aten.fill.Scalar)
def full_like(context: Context, x: Value, fill_value: Any, **_: Any) -> Value:
    return filled_like(context, x, fill_value)


for _name, _number in (("zeros", 0), ("ones", 1)):
    lowers(getattr(aten, _name).default)(lambda context, size, number=_number, **_: filled(context, size, number))
    lowers(getattr(aten, f"new_{_name}").default)(
        lambda context, x, size, number=_number, **_: filled(context, size, number)
    )
    lowers(getattr(aten, f"{_name}_like").default)(
        lambda context, x, number=_number, **_: filled_like(context, x, number)
    )
# Its content is undefined; zeros make results reproducible.
lowers(aten.empty.memory_format)(lambda context, size, **_: filled(context, size, 0))


@lowers(aten.scalar_tensor.default)
def scalar_tensor(context: Context, number: Any, **_: Any) -> Value:
    return context.graph.scalar(number, context.out.dtype)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(context: Context, *bounds: Any, **_: Any) -> Value:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
    graph = context.graph
    if any(isinstance(number, float) for number in (start, end, step)):
        return iota(context, context.out.shape[0], start=start, step=step)
    numbers = graph.op("Range", *(graph.scalar(number, torch.int64) for number in (start, end, step)))
    return graph.cast(Value(numbers.name, torch.int64), context.out.dtype)


@lowers(torch.ops.prims.iota.default)
def iota(context: Context, length: Any, *, start: Any, step: Any, **_: Any) -> Value:
    """Return ``start + step * i``, multiplied as in torch: repeated sums of floats would drift."""
    graph, dtype = context.graph, torch.int64 if isinstance(start, int) and isinstance(step, int) else torch.float64
    zero, one = (graph.constant(number, torch.int64) for number in (0, 1))
    count = graph.op("Range", zero, graph.scalar(length, torch.int64), one)
    steps = graph.op("Mul", graph.cast(Value(count.name, torch.int64), dtype), graph.scalar(step, dtype))
    return graph.cast(Value(graph.op("Add", steps, graph.scalar(start, dtype)).name, dtype), context.out.dtype)


@lowers(aten._to_copy.default)
def to_copy(context: Context, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return context.graph.cast(x, dtype or context.out.dtype)


@lowers(torch.ops.prims.convert_element_type.default)
def convert_element_type(context: Context, x: Value, dtype: torch.dtype) -> Value:
    return context.graph.cast(x, dtype)


@lowers(aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default)
def same(context: Context, x: Value, **_: Any) -> Value:
    return x


@lowers(aten.copy.default)
def copy(context: Context, destination: Value, source: Value, non_blocking: bool = False) -> Value:
    value = context.graph.cast(source, context.out.dtype)
    return context.graph.op("Expand", value, context.graph.op("Shape", destination))
