"""Each operator that has a lowering, by itself in ONNX Runtime and in ATen, over shapes, dtypes and edge values.

Operators that models use often and that are decomposed are among them.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.capi import onnxruntime_pybind11_state as state
from torch.utils._pytree import tree_leaves

from portico.errors import InputError
from portico.ort.compiler.decompositions import decompositions
from portico.ort.compiler.lowerings import LOWERINGS
from unit.ort.compiler.lowerings import (
    activation_cases,
    attention_cases,
    creation_cases,
    division_cases,
    elementwise_cases,
    image_cases,
    indexing_cases,
    matrix_cases,
    normalization_cases,
    reduction_cases,
    shape_cases,
)
from unit.ort.compiler.lowerings.alone import run_alone, run_in_aten
from unit.ort.compiler.lowerings.cases import CASES

_FILLED_BY = (
    activation_cases, attention_cases, creation_cases, division_cases, elementwise_cases, image_cases, indexing_cases,
    matrix_cases, normalization_cases, reduction_cases, shape_cases,
)  # fmt: skip
# What models compute in: these have kernels for everything.
COMMON = {torch.float32, torch.float16, torch.int64, torch.bool}

# Few where the same cases are tried each time; many where new ones are looked for.
EXAMPLES = 8 if settings.default.derandomize else 300
# How ONNX Runtime says, when it runs, that there is no result, as ATen does with an error of its own.
REFUSALS = (RuntimeError, IndexError, state.Fail, state.InvalidArgument)


def test_each_lowering_has_a_case_and_each_case_a_lowering_or_a_decomposition():
    assert LOWERINGS.keys() <= CASES.keys() <= LOWERINGS.keys() | decompositions().keys()


@pytest.mark.parametrize("target", LOWERINGS, ids=str)
def test_a_lowering_is_for_what_reaches_the_compiler(target):
    """Torch takes operators apart that are made of others, and gives those that write to an argument another name."""
    if target is torch.ops.aten.true_divide.Tensor:
        return  # Torch computes with it what were numbers in Python.
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert not target._schema.is_mutable
    assert not has_kernel(target.name(), "CompositeImplicitAutograd") or has_kernel(target.name(), "CPU")


def run_where_there_are_kernels(target, call, symbolic):
    found = run_alone(target, call.args, call.kwargs, symbolic=symbolic)
    return run_in_aten(target, call.args, call.kwargs) if found is None else found


@pytest.mark.parametrize("target", CASES, ids=str)
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data(), symbolic=st.booleans())
def test_a_lowering_agrees_with_aten(target, data, symbolic):
    call = data.draw(CASES[target].calls)
    dtypes = {leaf.dtype for leaf in tree_leaves(call.args) if isinstance(leaf, torch.Tensor)}
    try:
        expected = run_in_aten(target, call.args, call.kwargs)
    except (RuntimeError, IndexError):
        with pytest.raises(REFUSALS):
            run_where_there_are_kernels(target, call, symbolic)
        return
    try:
        found = run_alone(target, call.args, call.kwargs, symbolic=symbolic)
    except InputError:
        assert torch.float64 in dtypes
        return
    if found is None:
        assert not dtypes <= COMMON
        return
    for ours, theirs in zip(found, expected, strict=True):
        CASES[target].agreement.check(ours, theirs)
