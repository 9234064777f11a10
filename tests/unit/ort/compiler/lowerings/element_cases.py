"""Calls of operators that work on each element by itself, and of those that make one element of many."""

import torch
from hypothesis import strategies as st
from hypothesis.strategies import sampled_from as pick

from unit.ort.compiler.lowerings.cases import (
    ALL,
    BITS,
    FLOATS,
    INTEGERS,
    MODERATE,
    NOT_EMPTY,
    NUMERIC,
    SCALARS,
    SHAPES,
    SIGNED,
    UNUSUAL,
    Call,
    add,
    alike_or_not,
    axes_of,
    broadcasting,
    case,
    dim,
    dims,
    dims_or_all,
    maybe,
    of,
    tensors,
)

aten = torch.ops.aten
flags = st.booleans()
scalars = pick(SCALARS)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
# Pairs of dtypes that meet in one operator.
MIXED = (torch.float32, torch.int64, torch.float16, torch.bool, torch.uint8)
# Numbers that no dtype has to round, for arithmetic whose overflow is not defined.
SMALL = (-7, -2, -1, 0, 1, 2, 3, 7)

# ---- One tensor ----

add(aten.abs.default, aten.neg.default, aten.sign.default, calls=of(tensors((*SIGNED, torch.uint8))))
add(aten.relu.default, aten.ceil.default, aten.floor.default, aten.round.default, calls=of(tensors(NUMERIC)))
add(aten.trunc.default, calls=of(tensors(NUMERIC)), zeros_have_signs=False)
add(aten.isnan.default, aten.isinf.default, aten.logical_not.default, calls=of(tensors(ALL)))
add(aten.bitwise_not.default, calls=of(tensors(BITS)))
add(
    aten.acos.default, aten.asin.default, aten.atan.default, aten.erf.default, aten.log.default, aten.log1p.default,
    aten.reciprocal.default, aten.rsqrt.default, aten.sqrt.default, aten.tanh.default,
    calls=of(tensors(ALL)), ulps=8,
)  # fmt: skip
PERIODS = (0.0, -0.0, 0.3, -0.7, 1.0, -1.0, 2.5, 9.0, 1e-3, 20.0, -20.0, *NOT_FINITE)
add(
    aten.acosh.default, aten.asinh.default, aten.atanh.default, aten.cos.default, aten.cosh.default, aten.exp.default,
    aten.sigmoid.default, aten.sin.default, aten.sinh.default, aten.tan.default,
    calls=of(tensors(FLOATS, numbers=PERIODS) | tensors(INTEGERS, numbers=(0, 1, 2, 3, 9))), ulps=16,
)  # fmt: skip

# ---- Several tensors, or a tensor and numbers ----

add(aten.mul.Tensor, aten.maximum.default, aten.minimum.default, calls=of(alike_or_not))
add(aten.mul.Scalar, calls=of(tensors(ALL), scalars))
add(
    aten.eq.Tensor, aten.ge.Tensor, aten.gt.Tensor, aten.le.Tensor, aten.lt.Tensor, aten.ne.Tensor,
    aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default,
    calls=of(broadcasting(ALL, ALL)),
)  # fmt: skip
add(
    aten.eq.Scalar, aten.ge.Scalar, aten.gt.Scalar, aten.le.Scalar, aten.lt.Scalar, aten.ne.Scalar,
    calls=of(tensors(ALL), pick([*SCALARS, True, float("nan"), float("inf")])),
)  # fmt: skip
add(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, calls=of(broadcasting(BITS, BITS)))
add(
    aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar,
    calls=of(tensors(BITS), pick([0, 1, 6, True])),
)  # fmt: skip


def factors(x, y):
    dtype = torch.result_type(x, y)
    if dtype is torch.bool:
        return pick((True, 1))
    return pick((1, -1, 0.5) if dtype.is_floating_point else (0, 1, -1, 3))


def with_factor(x, y):
    return st.fixed_dictionaries({"alpha": factors(x, y)})


add(aten.add.Tensor, calls=of(broadcasting(ALL, ALL), options=with_factor))
add(aten.sub.Tensor, aten.rsub.Tensor, calls=of(broadcasting(NUMERIC, NUMERIC), options=with_factor))


@case(aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar)
def of_one_and_a_number_and_a_factor(draw, op):
    x, other = draw(tensors(NUMERIC)), draw(scalars)
    return Call((x, other, draw(factors(x, other))))


add(
    aten.pow.Tensor_Tensor,
    calls=of(broadcasting(NUMERIC, (torch.float32, torch.int64), numbers=(0, 1, 2, 3, 4))),
    ulps=8,
)
add(
    aten.pow.Tensor_Scalar,
    calls=of(
        tensors(FLOATS, numbers=(*SMALL, *NOT_FINITE, 0.3, -0.0)) | tensors(INTEGERS, numbers=(0, 1, 2, 3)),
        lambda x: pick((0, 1, 2, 3, 4, 0.5, 1.5) + ((-0.5, -1, -2) if x.dtype.is_floating_point else ())),
    ),
    ulps=8,
)


@case(aten.pow.Scalar, ulps=8)
def of_a_number_and_exponent(draw, op):
    return Call((draw(pick((2, 0, 1, -2, 0.5, 10000.0))), draw(tensors(NUMERIC, numbers=(0, 1, 2, 3, 5)))))


# Which sign a zero has that ONNX Runtime chose is not said.
add(aten.where.self, calls=of(broadcasting((torch.bool,), MIXED, MIXED)), zeros_have_signs=False)
masked = broadcasting(ALL, (torch.bool,))
add(
    aten.masked_fill.Scalar,
    calls=of(
        masked,
        lambda x, _: pick((*SCALARS, float("-inf"), float("nan")) if x.dtype.is_floating_point else (0, 1, 3)),
    ),
    zeros_have_signs=False,
)
add(aten.masked_fill.Tensor, calls=of(masked, lambda x, _: tensors(x.dtype, ())), zeros_have_signs=False)
add(
    aten.hardtanh.default,
    calls=of(tensors(FLOATS))
    | of(tensors(FLOATS), st.just(0), st.just(6))
    | of(tensors(FLOATS), st.just(-0.5), st.just(2.5)),
)
bounds = st.tuples(*[pick([None, *SCALARS])] * 2).filter(lambda pair: pair != (None, None))


@case(aten.clamp.default)
def of_bounds(draw, op):
    return Call((draw(tensors(NUMERIC)), *draw(bounds)))


@case(aten.clamp.Tensor)
def of_tensors_of_bounds(draw, op):
    x, low, high = draw(broadcasting(MIXED[:2], MIXED[:2], MIXED[:2]))
    return Call((x, *draw(pick([(low, high), (low, None), (None, high)]))))


@case(aten.addcmul.default, ulps=4, zeros_have_signs=False)
def of_a_sum_and_a_product(draw, op):
    dtype = draw(pick((torch.float32, torch.float16, torch.int64)))
    value = draw(pick((1, 0.5, -2) if dtype.is_floating_point else (1, -2)))
    return Call(tuple(draw(broadcasting(dtype, dtype, dtype, numbers=SMALL))), {"value": value})


# ---- Division ----


def divisible(x):
    """Leave out the lowest integer: divided by -1 it ends the process, in ATen as well."""
    is_signed = x.dtype in (torch.int64, torch.int32)
    return x.clamp(min=torch.iinfo(x.dtype).min + 1) if is_signed else x


# ONNX Runtime refuses to divide even no integers by zero.
def divisor(x):
    return pick(SCALARS if x.numel() else SCALARS[1:])


def divisible_pair(pair):
    x, y = pair
    return divisible(x), y if x.numel() else y.masked_fill(y == 0, 1)


dividends = tensors(NUMERIC).map(divisible)
pairs = broadcasting(NUMERIC, NUMERIC).map(divisible_pair)
modes = st.fixed_dictionaries({"rounding_mode": pick(["floor", "trunc", None])})
add(aten.div.Tensor, aten.true_divide.Tensor, calls=of(alike_or_not))
add(aten.div.Scalar, calls=of(tensors(ALL), scalars), ulps=1)
add(aten.div.Tensor_mode, calls=of(pairs, options=modes), zeros_have_signs=False)
add(aten.div.Scalar_mode, calls=of(dividends, divisor, options=modes), ulps=1, zeros_have_signs=False)
add(aten.remainder.Tensor, aten.fmod.Tensor, calls=of(pairs))
add(aten.remainder.Scalar, aten.fmod.Scalar, calls=of(dividends, divisor), ulps=1)

# ---- Activation functions and their derivatives ----

FINITE = (0.0, -0.0, 0.5, -0.75, 1.0, -3.0, 6.0, -20.0, 1e-4)
activated = tensors(FLOATS, numbers=(*FINITE, *NOT_FINITE))
kinds = st.fixed_dictionaries({"approximate": pick(["none", "tanh"])})


@st.composite
def gradients(draw):
    """Draw a gradient and what the function was given, of one shape and dtype."""
    dtype, shape = draw(pick(FLOATS)), draw(pick(SHAPES))
    return draw(tensors(dtype, shape, FINITE)), draw(tensors(dtype, shape, (*FINITE, *NOT_FINITE)))


# Of infinity torch makes NaN.
add(
    aten.gelu.default,
    calls=of(tensors(FLOATS, numbers=(*FINITE, float("nan"))), options=kinds),
    ulps=32,
    zeros_have_signs=False,
    in_float32=True,
)
add(aten.gelu_backward.default, calls=of(gradients(), options=kinds), ulps=64, zeros_have_signs=False)
add(aten.silu.default, calls=of(activated), ulps=32)
add(
    aten.silu_backward.default, aten.tanh_backward.default, aten.sigmoid_backward.default,
    calls=of(gradients()), ulps=256, zeros_have_signs=False,
)  # fmt: skip
slopes = pick([0.01, 0.3, 0, -0.5])
add(aten.threshold_backward.default, calls=of(gradients(), pick([0, 0.5, -1])))
add(aten.leaky_relu.default, calls=of(activated, slopes), ulps=1, zeros_have_signs=False)
add(aten.leaky_relu_backward.default, calls=of(gradients(), pick([0.01, 0.3]), flags), ulps=1)

# ---- Reductions ----

WHOLE = (0, 1, 2, 3)
averaged = tensors(FLOATS, numbers=UNUSUAL)
added = averaged | tensors(BITS, numbers=WHOLE)
in_float32 = maybe(dtype=st.just(torch.float32))
not_empty = tensors(ALL, NOT_EMPTY)
SUMMED = {"ulps": 8, "zeros_have_signs": False}
add(aten.sum.default, aten.prod.default, calls=of(added, options=in_float32), **SUMMED)
add(aten.sum.dim_IntList, calls=of(added, dims_or_all, flags, options=in_float32), **SUMMED)
add(aten.mean.default, calls=of(averaged), **SUMMED)
add(aten.mean.dim, calls=of(averaged, dims_or_all, flags), **SUMMED)
add(aten.prod.dim_int, calls=of(added, dim, flags), **SUMMED)
add(
    aten.cumsum.default,
    calls=of(tensors(FLOATS, numbers=MODERATE) | tensors(BITS, numbers=WHOLE), dim, options=in_float32),
    **SUMMED,
)
corrections = st.fixed_dictionaries({"correction": pick([None, 0, 1, 0.5, 2]), "keepdim": flags})
add(aten.var.correction, calls=of(averaged, dims_or_all, options=corrections), **SUMMED)
add(aten.amax.default, aten.amin.default, calls=of(not_empty, dims, flags), zeros_have_signs=False)
add(aten.max.default, aten.min.default, calls=of(not_empty), zeros_have_signs=False)
add(aten.max.dim, aten.min.dim, calls=of(not_empty, dim, flags), zeros_have_signs=False)
add(
    aten.argmax.default, aten.argmin.default,
    calls=of(tensors(NUMERIC, NOT_EMPTY), lambda x: dim(x) | st.none(), flags),
)  # fmt: skip
add(aten.any.default, aten.all.default, calls=of(tensors(ALL)))
add(aten.any.dim, aten.all.dim, calls=of(tensors(ALL), dim, flags))
add(aten.any.dims, aten.all.dims, calls=of(tensors(ALL), dims_or_all, flags))


@st.composite
def distinct(draw):
    """Draw tensors of which no two elements are equal: torch does not say which of equal elements is first."""
    shape, dtype = draw(pick(NOT_EMPTY)), draw(pick(SIGNED))
    size = torch.Size(shape).numel()
    numbers = draw(st.permutations([*range(-size, size), *([float("nan")] if dtype.is_floating_point else [])]))
    return torch.tensor(numbers[:size], dtype=dtype).reshape(shape)


@case(aten.topk.default)
def of_the_largest(draw, op):
    x = draw(distinct())
    dim = draw(axes_of(x.dim()))
    count = draw(st.integers(1, x.shape[dim] if x.dim() else 1))
    return Call((x, count, dim, draw(flags)))


add(aten.sort.default, calls=of(distinct(), dim, flags))
counted = tensors(torch.float32, numbers=MODERATE).map(torch.Tensor.contiguous)
add(
    aten.histc.default,
    calls=of(counted, st.integers(1, 4), st.just(0), st.just(3))
    | of(counted, st.integers(1, 4), st.just(-1.0), st.just(2.0)),
)
