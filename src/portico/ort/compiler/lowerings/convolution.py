"""Convolution and its derivatives, for any number of spatial dimensions."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.lowerings.reductions import reduced
from portico.ort.compiler.lowerings.registry import Context, lowers
from portico.ort.compiler.lowerings.shapes import padded
from portico.ort.compiler.value import Value

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
