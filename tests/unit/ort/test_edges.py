"""Lowerings at the edges: not finite, zeros of both signs, empty tensors, sizes of 1 that broadcast."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.ort.lowered import assert_agrees

aten = torch.ops.aten
NUMBERS = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.5, 2.5, 1e-30, -3e38]
SHAPES = [(0,), (1,), (2, 0, 3), (1, 1), (2, 3), (2, 1, 3)]

UNARY = [
    aten.abs, aten.ceil, aten.exp, aten.floor, aten.isinf, aten.isnan, aten.log, aten.neg, aten.reciprocal,
    aten.relu, aten.rsqrt, aten.sigmoid, aten.sqrt, aten.tanh, aten.trunc, aten.erf,
]  # fmt: skip
BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.eq, torch.ne, torch.lt, torch.ge,
]  # fmt: skip
REDUCTIONS = [
    lambda x: x.sum(-1),
    lambda x: x.sum(),
    lambda x: aten.amax(x, [-1], True),
    lambda x: aten.amin(x, [0]),
    lambda x: aten.max.dim(x, -1),
    lambda x: aten.min.dim(x, 0, True),
    lambda x: x.argmax(),
    lambda x: x.argmin(-1),
    lambda x: aten._safe_softmax(x, -1),
    lambda x: (x > 0).any(),
    lambda x: (x > 0).all(0),
]


@st.composite
def tensors(draw, shapes=SHAPES):
    shape = draw(st.sampled_from(shapes))
    size = torch.Size(shape).numel()
    return torch.tensor(draw(st.lists(st.sampled_from(NUMBERS), min_size=size, max_size=size))).reshape(shape)


@pytest.mark.parametrize("op", UNARY, ids=str)
@settings(max_examples=4, deadline=None)
@given(x=tensors())
def test_unary(op, x):
    assert_agrees(op, x)


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
@settings(max_examples=4, deadline=None)
@given(x=tensors(), y=tensors([(1,), (1, 1), (3,)]))
def test_binary(op, x, y):
    if x.shape[-1] not in (1, y.shape[-1]) and y.shape[-1] != 1:
        y = y[..., :1]
    assert_agrees(op, x, y)


@pytest.mark.parametrize("op", REDUCTIONS)
@settings(max_examples=4, deadline=None)
@given(x=tensors([(1,), (1, 1), (2, 3), (2, 1, 3)]))
def test_reductions(op, x):
    assert_agrees(op, x)


def test_the_first_nan_is_the_extreme():
    nan = float("nan")
    x = torch.tensor([[1.0, nan, 3.0, nan], [nan, nan, -1.0, 5.0], [4.0, 1.0, 1.0, 4.0]])
    assert_agrees(lambda x: aten.max.dim(x, 1), x)
    assert_agrees(lambda x: aten.min.dim(x, 1, True), x)
    assert_agrees(lambda x: (x.argmax(), x.argmin(0)), x)


def test_rows_that_are_masked_altogether_have_no_probabilities():
    nothing = float("-inf")
    x = torch.tensor([[nothing, nothing], [nothing, -3e38], [0.0, nothing], [float("nan"), 0.0]])
    assert_agrees(lambda x: aten._safe_softmax(x, -1), x)
    assert_agrees(lambda x: aten._safe_softmax(x, 0), x[:3])


def test_a_frequent_word_gets_its_share_of_the_gradient():
    indices, grad = torch.tensor([[0, 2, 0], [0, 1, 2]]), torch.randn(2, 3, 4)
    assert_agrees(lambda g, i: aten.embedding_dense_backward(g, i, 5, -1, True), grad, indices, tolerance=1e-6)


def test_a_division_and_a_cast_of_torchs_own():
    x = torch.tensor([1, 2, 5])
    assert_agrees(lambda x: aten.true_divide(x, 2), x)
    assert_agrees(lambda x: torch.ops.prims.convert_element_type(x, torch.float32), x)
