"""Operators that return the elements that they are given, in another dtype at most."""

from typing import Any

import torch

from portico.ort.compiler.lowerings.registry import Context, lowers
from portico.ort.compiler.value import Value

aten = torch.ops.aten


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
