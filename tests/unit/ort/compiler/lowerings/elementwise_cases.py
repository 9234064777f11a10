"""Calls of operators that work on each element by itself."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import ALL, FLOATS, INTEGERS, NUMERIC, SCALARS, broadcasting, tensors

aten = torch.ops.aten
SIGNED = (*FLOATS, torch.int64, torch.int32)
# Pairs of dtypes that meet in one operator.
MIXED = (torch.float32, torch.int64, torch.float16, torch.bool, torch.uint8)
# Numbers that no dtype has to round, for arithmetic whose overflow is not defined.
SMALL = (-7, -2, -1, 0, 1, 2, 3, 7)


@case(aten.abs.default, aten.neg.default, aten.sign.default)
def of_signed_numbers(draw, op):
    return Call((draw(tensors((*SIGNED, torch.uint8))),))


@case(aten.relu.default)
def of_numbers(draw, op):
    return Call((draw(tensors(NUMERIC)),))


@case(aten.ceil.default, aten.floor.default, aten.round.default)
def of_numbers_with_a_fraction(draw, op):
    return Call((draw(tensors(NUMERIC)),))


@case(aten.trunc.default, zeros_have_signs=False)
def of_numbers_with_a_fraction_to_cut(draw, op):
    return Call((draw(tensors(NUMERIC)),))


@case(aten.isnan.default, aten.isinf.default, aten.logical_not.default)
def of_anything(draw, op):
    return Call((draw(tensors(ALL)),))


@case(
    aten.acos.default, aten.asin.default, aten.atan.default, aten.erf.default, aten.log.default, aten.log1p.default,
    aten.reciprocal.default, aten.rsqrt.default, aten.sqrt.default, aten.tanh.default,
    ulps=8,
)  # fmt: skip
def of_any_number_to_a_float(draw, op):
    return Call((draw(tensors(ALL)),))


@case(
    aten.acosh.default, aten.asinh.default, aten.atanh.default, aten.cos.default, aten.cosh.default, aten.exp.default,
    aten.sigmoid.default, aten.sin.default, aten.sinh.default, aten.tan.default,
    ulps=16,
)  # fmt: skip
def of_numbers_of_a_period(draw, op):
    numbers = (0.0, -0.0, 0.3, -0.7, 1.0, -1.0, 2.5, 9.0, 1e-3, 20.0, -20.0, float("nan"), float("inf"), float("-inf"))
    return Call((draw(tensors(FLOATS, numbers=numbers) | tensors(INTEGERS, numbers=(0, 1, 2, 3, 9))),))


@case(aten.bitwise_not.default)
def of_bits(draw, op):
    return Call((draw(tensors((*INTEGERS, torch.bool))),))


@case(aten.mul.Tensor, aten.maximum.default, aten.minimum.default)
def of_two(draw, op):
    dtypes = draw(st.sampled_from([(ALL, ALL), *((dtype, dtype) for dtype in ALL)]))
    return Call(tuple(draw(broadcasting(*dtypes))))


@case(aten.mul.Scalar)
def of_one_and_a_number(draw, op):
    return Call((draw(tensors(ALL)), draw(st.sampled_from(SCALARS))))


@case(
    aten.eq.Tensor, aten.ge.Tensor, aten.gt.Tensor, aten.le.Tensor, aten.lt.Tensor, aten.ne.Tensor,
    aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default,
)  # fmt: skip
def of_two_to_truth(draw, op):
    return Call(tuple(draw(broadcasting(ALL, ALL))))


@case(aten.eq.Scalar, aten.ge.Scalar, aten.gt.Scalar, aten.le.Scalar, aten.lt.Scalar, aten.ne.Scalar)
def of_one_and_a_number_to_truth(draw, op):
    return Call((draw(tensors(ALL)), draw(st.sampled_from([*SCALARS, True, float("nan"), float("inf")]))))


@case(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor)
def of_two_with_bits(draw, op):
    bits = (*INTEGERS, torch.bool)
    return Call(tuple(draw(broadcasting(bits, bits))))


@case(aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar)
def of_bits_and_a_number(draw, op):
    return Call((draw(tensors((*INTEGERS, torch.bool))), draw(st.sampled_from([0, 1, 6, True]))))


@case(aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor)
def of_two_and_a_factor(draw, op):
    dtypes = (ALL, ALL) if op is aten.add.Tensor else (NUMERIC, NUMERIC)
    x, y = draw(broadcasting(*dtypes))
    factors = (1, -1, 0.5) if torch.result_type(x, y).is_floating_point else (0, 1, -1, 3)
    factors = (True, 1) if torch.result_type(x, y) is torch.bool else factors
    return Call((x, y), {"alpha": draw(st.sampled_from(factors))})


@case(aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar)
def of_one_and_a_number_and_a_factor(draw, op):
    x, other = draw(tensors(NUMERIC)), draw(st.sampled_from(SCALARS))
    factors = (1, -1, 0.5) if torch.result_type(x, other).is_floating_point else (0, 1, -1, 3)
    return Call((x, other, draw(st.sampled_from(factors))))


@case(aten.pow.Tensor_Tensor, ulps=8)
def of_base_and_exponent(draw, op):
    return Call(tuple(draw(broadcasting(NUMERIC, (torch.float32, torch.int64), numbers=(0, 1, 2, 3, 4)))))


@case(aten.pow.Tensor_Scalar, ulps=8)
def of_base_and_a_number(draw, op):
    numbers = (*SMALL, float("nan"), float("inf"), float("-inf"), 0.3, -0.0)
    x = draw(tensors(FLOATS, numbers=numbers) | tensors(INTEGERS, numbers=(0, 1, 2, 3)))
    exponents = (0, 1, 2, 3, 4, 0.5, 1.5) + ((-0.5, -1, -2) if x.dtype.is_floating_point else ())
    return Call((x, draw(st.sampled_from(exponents))))


@case(aten.pow.Scalar, ulps=8)
def of_a_number_and_exponent(draw, op):
    return Call((draw(st.sampled_from((2, 0, 1, -2, 0.5, 10000.0))), draw(tensors(NUMERIC, numbers=(0, 1, 2, 3, 5)))))


# Which sign a zero has that ONNX Runtime chose is not said.
@case(aten.where.self, zeros_have_signs=False)
def of_a_condition_and_two(draw, op):
    return Call(tuple(draw(broadcasting((torch.bool,), MIXED, MIXED))))


@case(aten.masked_fill.Scalar, zeros_have_signs=False)
def of_a_mask_and_a_number(draw, op):
    x, mask = draw(broadcasting(ALL, (torch.bool,)))
    numbers = (*SCALARS, float("-inf"), float("nan")) if x.dtype.is_floating_point else (0, 1, 3)
    return Call((x, mask, draw(st.sampled_from(numbers))))


@case(aten.masked_fill.Tensor, zeros_have_signs=False)
def of_a_mask_and_a_tensor(draw, op):
    x, mask = draw(broadcasting(ALL, (torch.bool,)))
    return Call((x, mask, draw(tensors(x.dtype, ()))))


@case(aten.hardtanh.default)
def of_a_range(draw, op):
    x = draw(tensors(FLOATS))
    return Call((x, *draw(st.sampled_from([(), (0, 6), (-0.5, 2.5)]))))


@case(aten.clamp.default)
def of_bounds(draw, op):
    bounds = draw(st.tuples(*[st.sampled_from([None, *SCALARS])] * 2).filter(lambda pair: pair != (None, None)))
    return Call((draw(tensors(NUMERIC)), *bounds))


@case(aten.clamp.Tensor)
def of_tensors_of_bounds(draw, op):
    x, low, high = draw(broadcasting(MIXED[:2], MIXED[:2], MIXED[:2]))
    return Call((x, *draw(st.sampled_from([(low, high), (low, None), (None, high)]))))


@case(aten.addcmul.default, ulps=4, zeros_have_signs=False)
def of_a_sum_and_a_product(draw, op):
    dtype = draw(st.sampled_from((torch.float32, torch.float16, torch.int64)))
    factors = (1, 0.5, -2) if dtype.is_floating_point else (1, -2)
    return Call(
        tuple(draw(broadcasting(dtype, dtype, dtype, numbers=SMALL))), {"value": draw(st.sampled_from(factors))}
    )
