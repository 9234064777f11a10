"""What ONNX Runtime's own operators do otherwise than ATen's, each once."""

import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as state

from releases import since_onnxruntime
from unit.ort.compiler.lowerings.lowered import assert_agrees, assert_is, traced

aten = torch.ops.aten
NAN, INFINITY = float("nan"), float("inf")


def test_the_digits_of_small_numbers_stay_in_a_logarithm():
    x = torch.tensor([1e-10, -1e-10, 3e-5, -2e-4, 0.3, 5.0, -1.0, -2.0, INFINITY, NAN, 1e-38])
    program = traced(torch.log1p, x)
    torch.testing.assert_close(program(x), torch.log1p(x), rtol=1e-6, atol=0, equal_nan=True)


def test_remainders_of_large_integers_are_exact():
    x, y = torch.tensor([2**63 - 1, -(2**62) - 1, 7]), torch.tensor([2, 3, -2])
    assert_agrees(torch.fmod, x, y)
    assert_agrees(torch.remainder, x, y)


def test_remainders_and_quotients_of_floats():
    x, y = torch.tensor([1.0, -1.0, 1.0, -7.5, 3.0, 1.0]), torch.tensor([INFINITY, INFINITY, 0.1, 2.0, 0.0, NAN])
    assert_agrees(torch.remainder, x, y)
    assert_agrees(lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="floor"), x, y)


@pytest.mark.parametrize(
    "function", [torch.remainder, torch.fmod, lambda x, y: torch.div(x, y, rounding_mode="floor")]
)
def test_integers_are_not_divided_by_zero(function):
    program = traced(function, torch.tensor([1, 2]), torch.tensor([1, 2]))
    with pytest.raises(state.Fail, match=r"Integer (division|modulo) by zero"):
        program(torch.tensor([1, 2]), torch.tensor([1, 0]))


@since_onnxruntime("1.30")
@pytest.mark.parametrize(
    "function",
    [
        lambda i: aten.embedding(torch.ones(3, 2) * i.sum(), i),
        lambda i: aten.index_select(i + 1, 0, i),
        lambda i: aten.gather(i + 1, 0, i),
        lambda i: aten.scatter.value(i + 1, 0, i, 5),
        lambda i: aten.scatter.src(i + 1, 0, i, i),
        lambda i: aten.scatter_add(i + 1, 0, i, i),
    ],
)
@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_that_torch_refuses_is_refused(function, index):
    program = traced(function, torch.tensor([0, 1, 2]))
    with pytest.raises((state.InvalidArgument, state.Fail), match=r"(?i)out of (data )?(bounds|range)"):
        program(torch.tensor([0, 1, index]))


def test_the_first_nan_is_the_extreme():
    x = torch.tensor([[1.0, NAN, 3.0, NAN], [NAN, NAN, -1.0, 5.0], [4.0, 1.0, 1.0, 4.0]])
    assert_agrees(lambda x: aten.max.dim(x, 1), x)
    assert_agrees(lambda x: aten.min.dim(x, 1, True), x)
    assert_agrees(lambda x: (x.argmax(), x.argmin(0)), x)


def test_rows_that_are_masked_altogether_have_no_probabilities():
    nothing = -INFINITY
    x = torch.tensor([[nothing, nothing], [nothing, -3e38], [0.0, nothing], [NAN, 0.0]])
    assert_agrees(lambda x: aten._safe_softmax(x, -1), x)
    assert_agrees(lambda x: aten._safe_softmax(x, 0), x[:3])


@since_onnxruntime("1.30")
def test_the_first_of_equal_elements_is_the_largest():
    x = torch.tensor([[[[1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 2.0, 2.0]]]])
    assert_agrees(lambda x: aten.max_pool2d_with_indices(x, [2, 2]), x)
    assert_agrees(lambda x: aten.max_pool2d_with_indices(x, [2, 2]), torch.full((1, 1, 2, 2), -INFINITY))


def test_a_split_of_which_the_last_part_is_not_read():
    assert_agrees(lambda x: x.split([1, 3])[0], torch.randn(4, 2))


@pytest.mark.parametrize("exponent", [0.5, -0.5, -1, -2, 3])
def test_powers_of_zeros_and_infinities_are_those_of_torch(exponent):
    x = torch.tensor([0.0, -0.0, INFINITY, -INFINITY, NAN, 4.0, -4.0])
    found, expected = traced(lambda x: x**exponent, x)(x), x**exponent
    assert_is(found, expected)
    assert torch.equal((1 / found).nan_to_num(), (1 / expected).nan_to_num()), "zeros of other signs"


def test_a_padding_of_what_was_transposed():
    """ONNX Runtime moves the transposition past it."""
    assert_agrees(lambda x: aten.constant_pad_nd(x.transpose(1, 2) + 1, [1, -1], 0.5) * 2, torch.randn(2, 3, 4))
    assert_agrees(lambda x: aten.constant_pad_nd(x, [0, -1], 0.5), torch.randn(2, 3, 4).transpose(1, 2))
