"""Calls of convolution and pooling."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import MODERATE, tensors

aten = torch.ops.aten
# Infinity and NaN in one window are not told apart, nor are several NaNs.
NUMBERS = (*MODERATE, float("-inf"))


@st.composite
def convolutions(draw):
    """Draw input, weight, bias and the options of a convolution in one to three dimensions."""
    spatial, groups = draw(st.sampled_from([1, 1, 2, 2, 3])), draw(st.sampled_from([1, 2]))
    kernel, stride, dilation = ([draw(st.integers(1, 3)) for _ in range(spatial)] for _ in range(3))
    padding = [draw(st.integers(0, size - 1)) for size in kernel]
    transposed = draw(st.booleans())
    beyond = [draw(st.integers(0, step - 1)) if transposed else 0 for step in stride]
    sizes = [draw(st.integers(7, 8)) if spatial < 3 else 7 for _ in range(spatial)]
    inputs, outputs = 2 * groups, groups
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    shape = (inputs, outputs // groups, *kernel) if transposed else (outputs, inputs // groups, *kernel)
    x, weight = (
        torch.randn(shape, generator=generator) for shape in ((draw(st.integers(1, 2)), inputs, *sizes), shape)
    )
    bias = draw(st.none() | tensors(torch.float32, (outputs,), MODERATE))
    return x, weight, bias, (stride, padding, dilation, transposed, beyond, groups)


@case(aten.convolution.default, ulps=256, zeros_have_signs=False)
def of_a_convolution(draw, op):
    x, weight, bias, options = draw(convolutions())
    return Call((x, weight, bias, *options))


@st.composite
def poolings(draw):
    """Draw the input and the options of a pooling."""
    kernel = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    stride = draw(st.just([]) | st.lists(st.integers(1, 3), min_size=1, max_size=2))
    padding, dilation = [draw(st.integers(0, min(kernel) // 2))], [draw(st.integers(1, 2))]
    x = draw(tensors((torch.float32, torch.float64), ((1, 6, 5), (1, 2, 5, 5)), NUMBERS)).contiguous()
    if draw(st.booleans()):
        x[..., draw(st.integers(0, 4)), draw(st.integers(0, 4))] = float("nan")
    return x, kernel, stride, padding, dilation, draw(st.booleans())


@case(aten.max_pool2d_with_indices.default)
def of_a_pooling(draw, op):
    return Call(draw(poolings()))
