"""Convolution and its derivatives, for any number of spatial dimensions."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.graph import Value
from portico.ort.compiler.lowerings.reductions import reduced
from portico.ort.compiler.lowerings.registry import Context, lowers
from portico.ort.compiler.lowerings.shapes import padded

aten = torch.ops.aten


@lowers(aten.convolution.default)
def convolution(
    context: Context,
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
    options: dict[str, Any] = {
        "strides": list(stride),
        "pads": [*padding, *padding],
        "dilations": list(dilation),
        "group": groups,
    }
    if transposed:
        return context.graph.op("ConvTranspose", x, weight, bias, output_padding=list(output_padding), **options)
    return context.graph.op("Conv", x, weight, bias, **options)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    context: Context,
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
    if output_mask[0]:
        by_input = _convolved if transposed else _spread
        grads[0] = by_input(context, grad, x, weight, stride, padding, dilation, groups)
    if output_mask[1]:
        narrow, wide = (x, grad) if transposed else (grad, x)
        grads[1] = _correlated(context, wide, narrow, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        grads[2] = reduced(context.graph, "ReduceSum", grad, [0, *range(2, grad.rank)])
    return tuple(grads)


def _convolved(
    context: Context, grad: Value, x: Value, weight: Value, stride: Any, padding: Any, dilation: Any, groups: int
) -> Value:
    return convolution(context, grad, weight, None, stride, padding, dilation, False, (), groups)


def _spread(
    context: Context, grad: Value, x: Value, weight: Value, stride: Any, padding: Any, dilation: Any, groups: int
) -> Value:
    """Return what each element of the padded input gave to the output, without the padding.

    At the far end lie as many elements as no window reached, fewer than a stride.
    """
    graph, spatial = context.graph, list(range(2, x.rank))
    whole = graph.op("ConvTranspose", grad, weight, strides=list(stride), dilations=list(dilation), group=groups)
    if not any(padding) and all(step == 1 for step in stride):
        return whole
    whole = padded(graph, Value(whole.name, shape=x.shape), [0] * len(spatial), [step - 1 for step in stride])
    start = graph.constant(list(padding), torch.int64)
    end = graph.op("Add", start, graph.op("Shape", x, start=2))
    return graph.op("Slice", whole, start, end, graph.axes(*spatial))


def _correlated(
    context: Context, wide: Value, narrow: Value, weight: Value, stride: Any, padding: Any, dilation: Any, groups: int
) -> Value:
    """Return the sum over the batch of products of ``narrow`` with the window of ``wide`` that each element saw.

    That is a convolution in which batch and channels have changed places, and so have stride and dilation.
    """
    graph = context.graph
    rank = len(weight.shape or ())
    swapped = [1, 0, *range(2, rank)]
    by_channel = graph.transpose(wide, swapped)
    if groups > 1:
        # [N, G * C, ...] to [C, G * N, ...]: each group convolves its own part.
        split = graph.op("Reshape", wide, graph.vector([0, groups, -1, *_sizes_from(graph, wide, 2)]))
        split = graph.op("Transpose", split, perm=[2, 1, 0, *range(3, rank + 1)])
        by_channel = graph.op("Reshape", split, graph.vector([0, -1, *_sizes_from(graph, wide, 2)]))
    product = graph.op(
        "Conv",
        by_channel,
        graph.transpose(narrow, swapped),
        strides=list(dilation),
        dilations=list(stride),
        pads=[*padding, *padding],
        group=groups,
    )
    # Elements that no window reached make the product larger than the kernel.
    kernel = list((weight.shape or ())[2:])
    spatial = graph.axes(*range(2, rank))
    product = graph.op("Slice", product, graph.constant([0] * len(kernel), torch.int64), graph.vector(kernel), spatial)
    return graph.transpose(product, swapped)


def _sizes_from(graph: Any, value: Value, start: int) -> list[Value]:
    return [
        Value(graph.op("Squeeze", graph.op("Shape", value, start=axis, end=axis + 1), graph.axes(0)).name, torch.int64)
        for axis in range(start, value.rank)
    ]


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
