"""Convolution, pooling and their derivatives in ONNX Runtime, against ATen."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.ort.lowered import assert_agrees

aten = torch.ops.aten


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def convolutions(draw):
    """Return input, weight and the options of a convolution."""
    spatial = draw(st.integers(1, 2))
    kernel, stride, dilation = (draw(st.lists(st.integers(1, 3), min_size=spatial, max_size=spatial)) for _ in "ksd")
    padding = [draw(st.integers(0, size - 1)) for size in kernel]
    groups, transposed = draw(st.sampled_from([1, 2])), draw(st.booleans())
    beyond = [draw(st.integers(0, step - 1)) if transposed else 0 for step in stride]
    sizes = [draw(st.integers(7, 9)) for _ in range(spatial)]
    x = normal(draw(st.integers(1, 3)), 4, *sizes)
    weight = normal(4, 6 // groups if transposed else 4 // groups, *kernel, seed=1)
    return x, weight, (stride, padding, dilation, transposed, beyond, groups)


@settings(max_examples=12, deadline=None)
@given(convolutions())
def test_convolution_and_its_derivatives(case):
    x, weight, options = case
    bias = normal(6 if options[3] else 4, seed=2)
    if options[3]:
        weight = weight[:, : 6 // options[5]]
    assert_agrees(lambda x, w, b: aten.convolution(x, w, b, *options), x, weight, bias, tolerance=1e-4)
    grad = torch.randn_like(aten.convolution(x, weight, bias, *options))
    assert_agrees(
        lambda g, x, w: aten.convolution_backward(g, x, w, [len(bias)], *options, [True, True, True]),
        grad, x, weight, tolerance=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("wanted", [[True, False, False], [False, True, False]])
def test_only_the_derivatives_that_are_wanted_are_computed(wanted):
    x, weight, grad = normal(2, 3, 8, 8), normal(4, 3, 4, 4, seed=1), normal(2, 4, 2, 2, seed=2)

    def backward(g, x, w):
        grads = aten.convolution_backward(g, x, w, [4], [4, 4], [0, 0], [1, 1], False, [0, 0], 1, wanted)
        return next(each for each in grads if each is not None)

    assert_agrees(backward, grad, x, weight, tolerance=1e-4)


@settings(max_examples=10, deadline=None)
@given(
    kernel=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    stride=st.lists(st.integers(1, 3), min_size=1, max_size=2) | st.just([]),
    dilation=st.integers(1, 2),
    rank=st.sampled_from([3, 4]),
    data=st.data(),
)
def test_max_pooling_and_its_derivative(kernel, stride, dilation, rank, data):
    padding = [data.draw(st.integers(0, min(kernel) // 2))]
    x = normal(*(2, 3, 7, 6)[-rank:])
    options = (kernel, stride, padding, [dilation], False)
    assert_agrees(lambda x: aten.max_pool2d_with_indices(x, *options), x)
    largest, indices = aten.max_pool2d_with_indices(x, *options)
    assert_agrees(
        lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *options, i),
        torch.randn_like(largest), x, indices, tolerance=1e-6,
    )  # fmt: skip


def test_the_first_of_equal_elements_is_the_largest():
    x = torch.tensor([[[[1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 2.0, 2.0]]]])
    assert_agrees(lambda x: aten.max_pool2d_with_indices(x, [2, 2]), x)
    assert_agrees(lambda x: aten.max_pool2d_with_indices(x, [2, 2]), torch.full((1, 1, 2, 2), float("-inf")))
