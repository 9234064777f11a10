"""Convolution in any number of spatial dimensions, 2-d max pooling, and their derivatives."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Value
from portico.ort.compiler.lowerings.reductions import reduced
from portico.ort.compiler.lowerings.registry import lowers
from portico.ort.compiler.lowerings.shapes import padded

aten = torch.ops.aten


@lowers(aten.convolution.default)
def convolution(
    graph: Graph,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    sizes: dict[str, Any] = {"strides": list(stride), "pads": [*padding, *padding], "dilations": list(dilation)}
    if transposed:
        sizes["output_padding"] = list(output_padding)
    return graph.op("ConvTranspose" if transposed else "Conv", x, weight, bias, group=groups, **sizes)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    graph: Graph,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    grads: list[Value | None] = [None, None, None]
    if output_mask[0] and transposed:
        grads[0] = convolution(graph, grad, weight, None, stride, padding, dilation, False, (), groups)
    elif output_mask[0]:
        grads[0] = _gradient_of_input(graph, grad, x, weight, stride, padding, dilation, groups)
    if output_mask[1]:
        narrow, wide = (x, grad) if transposed else (grad, x)
        grads[1] = _gradient_of_weight(graph, wide, narrow, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        grads[2] = reduced(graph, "ReduceSum", grad, [0, *range(2, grad.rank)])
    return tuple(grads)


def _gradient_of_input(
    graph: Graph, grad: Value, x: Value, weight: Value, stride: Any, padding: Any, dilation: Any, groups: int
) -> Value:
    """Return the gradient of the input: a transposed convolution, cut to the input without its padding.

    Fewer than ``stride`` elements at the far end may have been in no window: their gradient is zero.
    """
    spatial = list(range(2, x.rank))
    whole = graph.op("ConvTranspose", grad, weight, strides=list(stride), dilations=list(dilation), group=groups)
    if not any(padding) and all(step == 1 for step in stride):
        return whole
    whole = padded(graph, Value(whole.name, shape=x.shape), [0] * len(spatial), [step - 1 for step in stride])
    start = graph.constant(list(padding), torch.int64)
    end = graph.op("Add", start, graph.op("Shape", x, start=2))
    return graph.op("Slice", whole, start, end, graph.axes(*spatial))


def _gradient_of_weight(
    graph: Graph, wide: Value, narrow: Value, weight: Value, stride: Any, padding: Any, dilation: Any, groups: int
) -> Value:
    """Return the gradient of the weight, which sums ``narrow`` times the window of ``wide`` that each element saw.

    This is a convolution with batch and channels swapped, and with stride and dilation swapped.
    """
    rank = len(weight.dims)
    swapped = [1, 0, *range(2, rank)]
    by_channel = graph.transpose(wide, swapped)
    if groups > 1:
        # [N, G * C, ...] to [C, G * N, ...]: each group convolves its own part.
        sizes = [graph.dimension(wide, axis) for axis in range(2, rank)]
        split = graph.op("Reshape", wide, graph.vector([0, groups, -1, *sizes]))
        split = graph.op("Transpose", split, perm=[2, 1, 0, *range(3, rank + 1)])
        by_channel = graph.op("Reshape", split, graph.vector([0, -1, *sizes]))
    narrow = graph.transpose(narrow, swapped)
    product = convolution(graph, by_channel, narrow, None, dilation, padding, stride, False, (), groups)
    # Elements at the far end that are in no window make the product larger than the kernel.
    kernel = list(weight.dims[2:])
    spatial = graph.axes(*range(2, rank))
    product = graph.op("Slice", product, graph.constant([0] * len(kernel), torch.int64), graph.vector(kernel), spatial)
    return graph.transpose(product, swapped)


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(
    graph: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    kernel = _both(kernel_size)
    batch = x if x.rank == 4 else graph.op("Unsqueeze", x, graph.axes(0))
    # ONNX Runtime ignores NaN: take infinity instead, and only the positions from the pooling.
    is_nan, infinity = graph.op("IsNaN", batch), graph.constant(float("inf"), graph.out[0].dtype)
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
    graph: Graph,
    grad: Value,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    # `Reshape` keeps a dimension of 0 and infers one of -1: this flattens each plane.
    as_rows = graph.constant([0] * (x.rank - 2) + [-1], torch.int64)
    rows, positions, updates = (graph.op("Reshape", value, as_rows) for value in (x, indices, grad))
    zeros = graph.op("Expand", graph.operand(0), graph.op("Shape", rows))
    scattered = graph.op("ScatterElements", zeros, positions, updates, axis=-1, reduction="add")
    return graph.op("Reshape", scattered, graph.op("Shape", x))


def _both(sizes: Sequence[int]) -> list[int]:
    """Return a number for each of two dimensions; torch accepts one for both."""
    return list(sizes) * 2 if len(sizes) == 1 else list(sizes)
