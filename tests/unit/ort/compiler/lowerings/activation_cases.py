"""Calls of activation functions and their derivatives."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import FLOATS, SHAPES, tensors

aten = torch.ops.aten
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
NUMBERS = (0.0, -0.0, 0.5, -0.75, 1.0, -3.0, 6.0, -20.0, 1e-4, *NOT_FINITE)
FINITE = NUMBERS[:-3]


def _one(draw):
    return draw(tensors(FLOATS, numbers=NUMBERS))


def _two(draw):
    """Draw a gradient and what the function was given, of one shape and dtype."""
    dtype, shape = draw(st.sampled_from(FLOATS)), draw(st.sampled_from(SHAPES))
    return draw(tensors(dtype, shape, FINITE)), draw(tensors(dtype, shape, NUMBERS))


@case(aten.gelu.default, ulps=32, zeros_have_signs=False, in_float32=True)
def of_a_kind(draw, op):
    # Of infinity torch makes NaN.
    x = draw(tensors(FLOATS, numbers=(*FINITE, float("nan"))))
    return Call((x,), {"approximate": draw(st.sampled_from(["none", "tanh"]))})


@case(aten.gelu_backward.default, ulps=64, zeros_have_signs=False)
def of_a_gradient_and_a_kind(draw, op):
    return Call(_two(draw), {"approximate": draw(st.sampled_from(["none", "tanh"]))})


@case(aten.silu.default, ulps=32)
def of_one(draw, op):
    return Call((_one(draw),))


@case(
    aten.silu_backward.default, aten.tanh_backward.default, aten.sigmoid_backward.default,
    ulps=256, zeros_have_signs=False,
)  # fmt: skip
def of_a_gradient(draw, op):
    return Call(_two(draw))


@case(aten.threshold_backward.default)
def of_a_gradient_and_a_threshold(draw, op):
    return Call((*_two(draw), draw(st.sampled_from([0, 0.5, -1]))))


@case(aten.leaky_relu.default, ulps=1, zeros_have_signs=False)
def of_a_slope(draw, op):
    return Call((_one(draw), draw(st.sampled_from([0.01, 0.3, 0, -0.5]))))


@case(aten.leaky_relu_backward.default, ulps=1)
def of_a_gradient_and_a_slope(draw, op):
    return Call((*_two(draw), draw(st.sampled_from([0.01, 0.3])), draw(st.booleans())))
