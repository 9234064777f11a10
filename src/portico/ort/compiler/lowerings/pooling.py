"""Pooling and its derivatives."""

from collections.abc import Sequence

import torch

from portico.ort.compiler.lowerings.registry import Context, lowers
from portico.ort.compiler.value import Value

aten = torch.ops.aten


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(
    context: Context,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    graph = context.graph
    kernel = _both(kernel_size)
    batch = x if x.rank == 4 else graph.op("Unsqueeze", x, graph.axes(0))
    # ONNX Runtime passes over what is no number: infinity stands in for it, and the pooling tells only where.
    is_nan, infinity = graph.op("IsNaN", batch), graph.constant(float("inf"), context.out[0].dtype)
    _, positions = graph.op(
        "MaxPool",
        graph.op("Where", is_nan, infinity, batch),
        outputs=2,
        kernel_shape=kernel,
        strides=_both(stride) if stride else kernel,
        pads=_both(padding) * 2,
        dilations=_both(dilation),
        ceil_mode=int(ceil_mode),
    )
    largest = graph.op("Gather", graph.op("Reshape", batch, graph.axes(-1)), positions)
    # ONNX counts positions in the whole tensor, torch in each channel's plane.
    plane = graph.op("ReduceProd", graph.op("Shape", x, start=-2), keepdims=0)
    positions = graph.op("Mod", positions, plane)
    if x.rank == 3:
        largest, positions = (graph.op("Squeeze", value, graph.axes(0)) for value in (largest, positions))
    return largest, positions


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    context: Context,
    grad: Value,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    graph = context.graph
    # In `Reshape` 0 keeps a dimension and -1 is the rest: the two of a plane become one.
    as_rows = graph.constant([0] * (x.rank - 2) + [-1], torch.int64)
    rows, positions, updates = (graph.op("Reshape", value, as_rows) for value in (x, indices, grad))
    zeros = graph.op("Expand", graph.constant(0, context.out.dtype), graph.op("Shape", rows))
    scattered = graph.op("ScatterElements", zeros, positions, updates, axis=-1, reduction="add")
    return graph.op("Reshape", scattered, graph.op("Shape", x))


def _both(sizes: Sequence[int]) -> list[int]:
    """Return one number for each of two dimensions; torch lets one stand for both."""
    return list(sizes) * 2 if len(sizes) == 1 else list(sizes)
