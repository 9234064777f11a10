"""Convolution and pooling."""

from collections.abc import Sequence
from typing import Any

import torch

from portico.ort.compiler.lowerings.registry import Context, lowers
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
