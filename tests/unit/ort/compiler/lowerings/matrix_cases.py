"""Calls of matrix products."""

import torch
from hypothesis import strategies as st

from portico.compat.transformers import products_of_experts
from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import FLOATS, MODERATE, UNUSUAL, tensors

aten = torch.ops.aten
sizes = st.integers(0, 3)
DTYPES = (*FLOATS, torch.int64, torch.int32)


def _factors(draw, *batch):
    dtype = draw(st.sampled_from(DTYPES))
    rows, inner, columns = (draw(sizes) for _ in range(3))
    numbers = UNUSUAL if dtype.is_floating_point else (0, 1, -2, 3)
    x, y = (draw(tensors(dtype, (*batch, *shape), numbers)) for shape in ((rows, inner), (inner, columns)))
    return x, y, numbers


@case(aten.mm.default, ulps=8, zeros_have_signs=False)
def of_two_matrices(draw, op):
    x, y, _ = _factors(draw)
    return Call((x, y))


@case(aten.bmm.default, ulps=8, zeros_have_signs=False)
def of_two_batches_of_matrices(draw, op):
    x, y, _ = _factors(draw, draw(sizes))
    return Call((x, y))


def _scales(draw, dtype):
    factors = (1, 0.5, -2) if dtype.is_floating_point else (1, -2)
    return {"alpha": draw(st.sampled_from(factors)), "beta": draw(st.sampled_from((*factors, 0)))}


def _added(draw, x, y, numbers, *batch):
    product = (*batch, x.shape[-2], y.shape[-1])
    shape = [draw(st.sampled_from([size, 1])) for size in product][draw(st.integers(0, 1)) :]
    return draw(tensors(x.dtype, tuple(shape), numbers))


@case(aten.addmm.default, ulps=8, zeros_have_signs=False)
def of_a_sum_with_a_product(draw, op):
    x, y, numbers = _factors(draw)
    return Call((_added(draw, x, y, numbers), x, y), _scales(draw, x.dtype))


@case(aten.baddbmm.default, ulps=8, zeros_have_signs=False)
def of_a_sum_with_products(draw, op):
    batch = draw(sizes)
    x, y, numbers = _factors(draw, batch)
    return Call((_added(draw, x, y, numbers, batch), x, y), _scales(draw, x.dtype))


def _experts(draw):
    """Draw rows, a matrix for each expert, and where the rows of each end; some experts may have none."""
    counts = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
    width, columns, beyond = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 1))
    x = draw(tensors(torch.float32, (sum(counts) + beyond, width), MODERATE))
    ends = torch.tensor(counts).cumsum(0, dtype=draw(st.sampled_from([torch.int32, torch.int64])))
    return x, draw(tensors(torch.float32, (len(counts), width, columns), MODERATE)), ends


@case(*products_of_experts("grouped_mm_fallback"), ulps=8, zeros_have_signs=False)
def of_experts(draw, op):
    return Call(_experts(draw))


@case(*products_of_experts("grouped_mm_fallback_backward"), ulps=8, zeros_have_signs=False)
def of_gradients_of_experts(draw, op):
    x, weight, ends = _experts(draw)
    return Call((x, weight, ends, draw(tensors(torch.float32, (len(x), weight.shape[2]), MODERATE))))
