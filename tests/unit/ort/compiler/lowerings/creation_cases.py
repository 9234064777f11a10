"""Calls of operators that make tensors of numbers, and of those that return what they are given."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import ALL, FLOATS, NUMERIC, SCALARS, SHAPES, shapes_that_broadcast, tensors

aten = torch.ops.aten
CPU = torch.device("cpu")
sizes = st.sampled_from(SHAPES).map(list)
dtypes = st.sampled_from(ALL)
numbers = st.sampled_from([*SCALARS, True, float("-inf"), float("nan")])


@case(aten.full.default)
def of_a_size_and_a_number(draw, op):
    dtype, number = draw(dtypes), draw(numbers)
    number = number if dtype.is_floating_point else 1
    return Call((draw(sizes), number), draw(st.sampled_from([{"dtype": dtype, "device": CPU}, {}])))


@case(aten.full_like.default)
def of_a_tensor_and_a_number(draw, op):
    x = draw(tensors(ALL))
    return Call(
        (x, draw(numbers) if x.dtype.is_floating_point else 1), draw(st.sampled_from([{}, {"dtype": x.dtype}]))
    )


@case(aten.fill.Scalar)
def of_a_tensor_to_fill(draw, op):
    x = draw(tensors(ALL))
    return Call((x, draw(numbers) if x.dtype.is_floating_point else 2))


@case(aten.zeros.default, aten.ones.default)
def of_a_size(draw, op):
    return Call((draw(sizes),), draw(st.sampled_from([{}, {"dtype": draw(dtypes)}])))


@case(aten.empty.memory_format, values=False)
def of_a_size_without_values(draw, op):
    return Call((draw(sizes),), {"dtype": draw(dtypes)})


@case(aten.empty_permuted.default, aten.empty_strided.default, values=False)
def of_a_size_and_an_order(draw, op):
    order = [0, 1] if op is aten.empty_permuted.default else [3, 1]
    return Call(([2, 3], order), {"dtype": draw(dtypes)})


@case(aten.new_zeros.default, aten.new_ones.default)
def of_a_tensor_and_a_size(draw, op):
    return Call((draw(tensors(ALL)), draw(sizes)), draw(st.sampled_from([{}, {"dtype": draw(dtypes)}])))


@case(aten.zeros_like.default, aten.ones_like.default)
def of_a_tensor(draw, op):
    return Call((draw(tensors(ALL)),), draw(st.sampled_from([{}, {"dtype": draw(dtypes)}])))


@case(aten.scalar_tensor.default)
def of_a_number(draw, op):
    dtype = draw(dtypes)
    return Call((draw(numbers) if dtype.is_floating_point else 1,), {"dtype": dtype})


def _range(draw, *bounds):
    is_whole = all(isinstance(bound, int) for bound in bounds[::2])
    dtypes = NUMERIC if is_whole and min(bounds) >= 0 else FLOATS
    return Call(bounds, draw(st.sampled_from([{}, *({"dtype": dtype} for dtype in dtypes)])))


@case(aten.arange.default)
def of_an_end(draw, op):
    return _range(draw, draw(st.sampled_from([0, 1, 5, 2.5])))


@case(aten.arange.start)
def of_two_ends(draw, op):
    start = draw(st.sampled_from([0, 2, 0.5]))
    return _range(draw, start, start + draw(st.sampled_from([0, 1, 5, 2.5])))


@case(aten.arange.start_step, ulps=1)
def of_two_ends_and_a_step(draw, op):
    start, step = draw(st.sampled_from([0, 20, 0.5])), draw(st.sampled_from([1, 2, 3, 0.1, -1]))
    return _range(draw, start, start + step * draw(st.sampled_from([0, 1, 2.5, 10])), step)


@case(torch.ops.prims.iota.default)
def of_a_length(draw, op):
    options = {"start": draw(st.integers(-3, 3)), "step": draw(st.sampled_from([1, 2, -3]))}
    options |= {"dtype": draw(st.sampled_from([torch.int64, torch.int32])), "device": CPU, "requires_grad": False}
    return Call((draw(st.integers(0, 5)),), options)


def _fits(x, dtype):
    """Tell whether each number is one in the other dtype too; for others C++ and so each kernel decides."""
    if dtype.is_floating_point or dtype is torch.bool:
        return True
    limits = torch.iinfo(dtype)
    numbers = x.double()
    return bool(((numbers >= limits.min) & (numbers < limits.max)).all()) or not x.dtype.is_floating_point


@case(aten._to_copy.default)
def of_a_cast_or_none(draw, op):
    x, dtype = draw(tensors(ALL)), draw(dtypes)
    return Call((x,), {"dtype": dtype} if _fits(x, dtype) else {})


@case(torch.ops.prims.convert_element_type.default)
def of_a_cast(draw, op):
    x, dtype = draw(tensors(ALL)), draw(dtypes)
    return Call((x, dtype if _fits(x, dtype) else x.dtype))


@case(aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default)
def of_what_stays(draw, op):
    return Call((draw(tensors(ALL)),))


@case(aten.copy.default)
def of_a_destination_and_a_source(draw, op):
    shape, _ = draw(shapes_that_broadcast(2, min_side=1))
    other = tuple(draw(st.sampled_from([size, 1])) for size in shape)
    x, source = draw(tensors(ALL, shape)), draw(tensors(ALL, other, numbers=(0, 1, 2)))
    return Call((x, source))
