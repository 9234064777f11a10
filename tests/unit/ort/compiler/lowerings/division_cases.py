"""Calls of division with its roundings and remainders."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import ALL, NUMERIC, SCALARS, broadcasting, tensors

aten = torch.ops.aten
modes = st.sampled_from(["floor", "trunc", None])


def _divisible(x):
    """Leave out the lowest integer: divided by -1 it ends the process, in ATen as well."""
    is_signed = x.dtype in (torch.int64, torch.int32)
    return x.clamp(min=torch.iinfo(x.dtype).min + 1) if is_signed else x


# ONNX Runtime refuses to divide even no integers by zero.
def _divisor(draw, x):
    return draw(st.sampled_from(SCALARS if x.numel() else SCALARS[1:]))


def _pair(draw):
    x, y = draw(broadcasting(NUMERIC, NUMERIC))
    return _divisible(x), y if x.numel() else y.masked_fill(y == 0, 1)


@case(aten.div.Tensor, aten.true_divide.Tensor)
def of_dividend_and_divisor(draw, op):
    dtypes = draw(st.sampled_from([(ALL, ALL), *((dtype, dtype) for dtype in ALL)]))
    return Call(tuple(draw(broadcasting(*dtypes))))


@case(aten.div.Scalar, ulps=1)
def of_a_dividend_and_a_number(draw, op):
    return Call((draw(tensors(ALL)), draw(st.sampled_from(SCALARS))))


@case(aten.div.Tensor_mode, zeros_have_signs=False)
def of_a_rounded_division(draw, op):
    return Call(_pair(draw), {"rounding_mode": draw(modes)})


@case(aten.div.Scalar_mode, ulps=1, zeros_have_signs=False)
def of_a_rounded_division_by_a_number(draw, op):
    x = _divisible(draw(tensors(NUMERIC)))
    return Call((x, _divisor(draw, x)), {"rounding_mode": draw(modes)})


@case(aten.remainder.Tensor, aten.fmod.Tensor)
def of_a_remainder(draw, op):
    return Call(_pair(draw))


@case(aten.remainder.Scalar, aten.fmod.Scalar, ulps=1)
def of_a_remainder_of_a_number(draw, op):
    x = _divisible(draw(tensors(NUMERIC)))
    return Call((x, _divisor(draw, x)))
