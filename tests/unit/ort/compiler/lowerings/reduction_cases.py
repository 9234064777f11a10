"""Calls of operators that make one element of many."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import (
    ALL,
    FLOATS,
    INTEGERS,
    MODERATE,
    NUMERIC,
    SHAPES,
    UNUSUAL,
    axes_of,
    several_axes_of,
    tensors,
)

aten = torch.ops.aten
NOT_EMPTY = tuple(shape for shape in SHAPES if 0 not in shape)
WHOLE = (0, 1, 2, 3)
added = tensors(FLOATS, numbers=UNUSUAL) | tensors((*INTEGERS, torch.bool), numbers=WHOLE)
averaged = tensors(FLOATS, numbers=UNUSUAL)


@case(aten.sum.default, aten.prod.default, ulps=8, zeros_have_signs=False)
def of_all(draw, op):
    return Call((draw(added),), draw(st.sampled_from([{}, {"dtype": torch.float32}])))


@case(aten.sum.dim_IntList, ulps=8, zeros_have_signs=False)
def of_several_dimensions(draw, op):
    x = draw(added)
    dims = draw(several_axes_of(x.dim()) | st.none())
    return Call((x, dims, draw(st.booleans())), draw(st.sampled_from([{}, {"dtype": torch.float32}])))


@case(aten.mean.default, ulps=8, zeros_have_signs=False)
def of_the_mean_of_all(draw, op):
    return Call((draw(averaged),))


@case(aten.mean.dim, ulps=8, zeros_have_signs=False)
def of_the_mean_of_several_dimensions(draw, op):
    x = draw(averaged)
    return Call((x, draw(several_axes_of(x.dim()) | st.none()), draw(st.booleans())))


@case(aten.amax.default, aten.amin.default, zeros_have_signs=False)
def of_extremes(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY))
    return Call((x, draw(several_axes_of(x.dim())), draw(st.booleans())))


@case(aten.max.default, aten.min.default, zeros_have_signs=False)
def of_the_extreme_of_all(draw, op):
    return Call((draw(tensors(ALL, NOT_EMPTY)),))


@case(aten.prod.dim_int, ulps=8, zeros_have_signs=False)
def of_one_dimension(draw, op):
    x = draw(added)
    return Call((x, draw(axes_of(x.dim())), draw(st.booleans())))


@case(aten.any.default, aten.all.default)
def of_the_truth_of_all(draw, op):
    return Call((draw(tensors(ALL)),))


@case(aten.any.dim, aten.all.dim)
def of_the_truth_of_one_dimension(draw, op):
    x = draw(tensors(ALL))
    return Call((x, draw(axes_of(x.dim())), draw(st.booleans())))


@case(aten.any.dims, aten.all.dims)
def of_the_truth_of_several_dimensions(draw, op):
    x = draw(tensors(ALL))
    return Call((x, draw(several_axes_of(x.dim()) | st.none()), draw(st.booleans())))


@case(aten.argmax.default, aten.argmin.default)
def of_where_extremes_are(draw, op):
    x = draw(tensors(NUMERIC, NOT_EMPTY))
    return Call((x, draw(axes_of(x.dim()) | st.none()), draw(st.booleans())))


@case(aten.max.dim, aten.min.dim, zeros_have_signs=False)
def of_extremes_and_where_they_are(draw, op):
    x = draw(tensors(ALL, NOT_EMPTY))
    return Call((x, draw(axes_of(x.dim())), draw(st.booleans())))


@case(aten.var.correction, ulps=8, zeros_have_signs=False)
def of_the_variance(draw, op):
    x = draw(averaged)
    options = {"correction": draw(st.sampled_from([None, 0, 1, 0.5, 2])), "keepdim": draw(st.booleans())}
    return Call((x, draw(several_axes_of(x.dim()) | st.none())), options)


@case(aten.cumsum.default, ulps=8, zeros_have_signs=False)
def of_sums_so_far(draw, op):
    x = draw(tensors(FLOATS, numbers=MODERATE) | tensors((*INTEGERS, torch.bool), numbers=WHOLE))
    options = draw(st.sampled_from([{}, {"dtype": torch.float32}]))
    return Call((x, draw(axes_of(x.dim()))), options)


@st.composite
def distinct(draw):
    """Draw tensors of which no two elements are equal: torch does not say which of equal elements is first."""
    shape, dtype = draw(st.sampled_from(NOT_EMPTY)), draw(st.sampled_from((*FLOATS, torch.int64, torch.int32)))
    size = torch.Size(shape).numel()
    numbers = draw(st.permutations([*range(-size, size), *([float("nan")] if dtype.is_floating_point else [])]))
    return torch.tensor(numbers[:size], dtype=dtype).reshape(shape)


@case(aten.topk.default)
def of_the_largest(draw, op):
    x = draw(distinct())
    dim = draw(axes_of(x.dim()))
    count = draw(st.integers(1, x.shape[dim] if x.dim() else 1))
    return Call((x, count, dim, draw(st.booleans())))


@case(aten.sort.default)
def of_all_in_order(draw, op):
    x = draw(distinct())
    return Call((x, draw(axes_of(x.dim())), draw(st.booleans())))


@case(aten.histc.default)
def of_a_histogram(draw, op):
    limits = draw(st.sampled_from([(0, 3), (-1.0, 2.0)]))
    return Call((draw(tensors(torch.float32, numbers=MODERATE)).contiguous(), draw(st.integers(1, 4)), *limits))
