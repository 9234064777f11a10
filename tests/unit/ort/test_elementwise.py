import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.ort.lowered import assert_agrees

aten = torch.ops.aten
SPECIAL = torch.tensor([-2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 7.0])

UNARY = [
    aten.abs, aten.acos, aten.asin, aten.atan, aten.ceil, aten.cos, aten.cosh, aten.erf, aten.exp, aten.floor,
    aten.isinf, aten.isnan, aten.log, aten.log1p, aten.logical_not, aten.neg, aten.reciprocal, aten.relu, aten.round,
    aten.rsqrt, aten.sigmoid, aten.sign, aten.sin, aten.sinh, aten.sqrt, aten.tan, aten.tanh, aten.trunc,
]  # fmt: skip


@pytest.mark.parametrize("op", UNARY, ids=str)
def test_unary(op):
    assert_agrees(op, SPECIAL)
    assert_agrees(op, SPECIAL.reshape(3, 3))


@pytest.mark.parametrize("op", [aten.exp, aten.sqrt, aten.sigmoid, aten.erf, aten.reciprocal], ids=str)
def test_unary_function_of_integers_is_a_float(op):
    assert_agrees(op, torch.tensor([1, 4, 9]))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("op", [aten.exp, aten.sigmoid, aten.isnan, aten.isinf, aten.relu, aten.abs], ids=str)
def test_unary_of_what_is_not_finite(op, value):
    assert_agrees(op, torch.tensor([value, 1.0]))


BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.eq, torch.ne, torch.lt, torch.le,
    torch.gt, torch.ge, torch.remainder, torch.fmod,
]  # fmt: skip
DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32]


def tensors(dtype):
    numbers = st.integers(1, 9).map(lambda n: n * (1 if n % 2 else -1))
    return st.lists(numbers, min_size=6, max_size=6).map(lambda ns: torch.tensor(ns).to(dtype))


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_binary_over_dtypes_and_broadcasting(op, data):
    first, second = (data.draw(st.sampled_from(DTYPES)) for _ in range(2))
    x = data.draw(tensors(first)).reshape(2, 3)
    y = data.draw(tensors(second)).reshape(data.draw(st.sampled_from([(6, 1, 1), (2, 1, 3)])))
    assert_agrees(op, x, y)


@pytest.mark.parametrize("mode", ["floor", "trunc", None])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_rounded_division(mode, dtype):
    x, y = torch.tensor([7, -7, 7, -7, 6, 0]).to(dtype), torch.tensor([2, 2, -2, -2, 3, 5]).to(dtype)
    assert_agrees(lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode=mode), x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 2,
        lambda x: 2.5 - x,
        lambda x: aten.add.Tensor(x, x, alpha=3),
        lambda x: aten.sub.Tensor(x, x, alpha=0.5),
        lambda x: x * 0.1,
        lambda x: x / 3,
        lambda x: x**2,
        lambda x: x**3,
        lambda x: aten.pow.Scalar(2, x),
        lambda x: x > 0,
        lambda x: x != 0.5,
        lambda x: aten.clamp(x, -1, 1),
        lambda x: aten.clamp(x, max=0.25),
        lambda x: aten.masked_fill.Scalar(x, x > 0, -7),
        lambda x: torch.where(x > 0, x, 0.5),
        lambda x: aten.addcmul(x, x, x, value=0.3),
        lambda x: aten._to_copy(x, dtype=torch.int64),
        lambda x: aten._to_copy(x > 0, dtype=torch.float64),
        lambda x: x.clone() + x,
    ],
)
def test_with_numbers(function):
    assert_agrees(function, SPECIAL)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x & y,
        lambda x, y: x | y,
        lambda x, y: aten.logical_xor(x, y),
        lambda x, y: x * y,
        lambda x, y: x + y,
        lambda x, y: x == y,
        lambda x, y: x < y,
        lambda x, y: ~x,
    ],
)
def test_booleans(function):
    assert_agrees(function, torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False]))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_its_derivative(approximate):
    x, grad = torch.linspace(-6, 6, 40), torch.linspace(-1, 1, 40)
    assert_agrees(lambda x: aten.gelu(x, approximate=approximate), x, tolerance=3e-6)
    assert_agrees(lambda g, x: aten.gelu_backward(g, x, approximate=approximate), grad, x, tolerance=3e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda g, x: aten.silu(x) + g,
        aten.silu_backward,
        aten.tanh_backward,
        aten.sigmoid_backward,
        lambda g, x: aten.threshold_backward(g, x, 0),
        lambda g, x: aten.leaky_relu(x, 0.1) + g,
        lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    ],
)
def test_activations_and_their_derivatives(function):
    assert_agrees(function, torch.linspace(-1, 1, 41), torch.linspace(-3, 3, 41), tolerance=1e-6)
