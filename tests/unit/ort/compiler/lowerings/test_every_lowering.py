"""Each operator that has a lowering, by itself in ONNX Runtime and in ATen, over shapes, dtypes and edge values.

Operators that models use often and that are decomposed are among them.
"""

import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.capi import onnxruntime_pybind11_state as state
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from portico.errors import InputError
from portico.ort.compiler.decompositions import decompositions
from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.partition import has_kernels, results
from portico.ort.compiler.translation import translate
from portico.ort.runtime import Program, make_session
from portico.ort.settings import SessionSettings
from releases import since_onnxruntime, since_torch
from unit.ort.compiler.lowerings import element_cases, product_cases, shape_cases
from unit.ort.compiler.lowerings.cases import CASES
from unit.ort.compiler.lowerings.lowered import taken_apart

_FILLED_BY = (element_cases, product_cases, shape_cases)
# What models compute in: these have kernels for everything.
COMMON = {torch.float32, torch.float16, torch.int64, torch.bool}

_NEEDS_NUMBERS = re.compile("concrete integers|with symbolic sizes")
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


def run_alone(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, symbolic: bool
) -> list[torch.Tensor] | None:
    """Return what an operator returns in ONNX Runtime; optional results that are ``None`` are left out.

    ``None`` stands for dtypes without kernels, for which the operator stays with ATen.

    Args:
        target: The operator, of which a graph is made that holds nothing else, or what it is decomposed into.
        args: Its arguments.
        kwargs: Its named arguments.
        symbolic: Whether the sizes of tensors are symbols in the graph.
    """
    leaves, structure = tree_flatten((args, kwargs))
    fakes, outs = _traced(target, leaves, structure, symbolic=symbolic)
    module = _graph_of(target, fakes, structure, outs)
    tensors = [leaf for leaf in leaves if _is_tensor(leaf)]
    if target not in LOWERINGS:
        module = taken_apart(module, *tensors, symbolic=symbolic)
    calls = (node for node in module.graph.nodes if node.target in LOWERINGS)
    if not all(map(has_kernels, calls)):
        return None
    program = Program(make_session(translate(module), SessionSettings(num_threads=1)))
    sizes = (tensors[index].shape[axis] for index, axis in module.meta.get("sizes_of", ()))
    found = program(*tensors, *sizes)
    return list(found) if isinstance(found, tuple) else [found]


def _traced(target: Any, leaves: list[Any], structure: Any, *, symbolic: bool) -> tuple[list[Any], Any]:
    with FakeTensorMode(shape_env=ShapeEnv() if symbolic else None) as mode:
        fakes = [mode.from_tensor(leaf, static_shapes=not symbolic) if _is_tensor(leaf) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(fakes, structure)
        try:
            return fakes, target(*args, **kwargs)
        except RuntimeError as error:
            # Kernels of torch that take apart what the compiler has taken apart before they are reached.
            if symbolic and _NEEDS_NUMBERS.search(str(error)):
                return _traced(target, leaves, structure, symbolic=False)
            raise


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _graph_of(target: Any, fakes: list[Any], structure: Any, outs: Any) -> fx.GraphModule:
    graph = fx.Graph()
    nodes = []
    for index, fake in enumerate(fakes):
        if _is_tensor(fake):
            node = graph.placeholder(f"input_{index}")
            node.meta["val"] = fake
            fake = node
        nodes.append(fake)
    args, kwargs = tree_unflatten(nodes, structure)
    call = graph.call_function(target, args, kwargs)
    call.meta["val"] = outs
    graph.output(results(call))
    return fx.GraphModule(torch.nn.Module(), graph)


def run_in_aten(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return what the operator itself returns."""
    args, kwargs = tree_map(lambda leaf: leaf.clone() if _is_tensor(leaf) else leaf, (args, kwargs))
    found = target(*args, **kwargs)
    return [found] if _is_tensor(found) else [each for each in found if each is not None]


def run_where_there_are_kernels(target, call, symbolic):
    found = run_alone(target, call.args, call.kwargs, symbolic=symbolic)
    return run_in_aten(target, call.args, call.kwargs) if found is None else found


# Where older releases differ: kernels of ONNX Runtime for NaN and infinity, and torch's decomposition of an operator.
SINCE = {
    torch.ops.aten.erf.default: since_onnxruntime("1.28"),
    torch.ops.aten.max_pool2d_with_indices.default: since_onnxruntime("1.30"),
    torch.ops.aten.silu_backward.default: since_torch("2.13"),
}


# ATen warns of a variance of one number, in torch 2.15 of a scalar's too.
@pytest.mark.filterwarnings(r"ignore:var\(\). degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize(
    "target", [pytest.param(target, marks=[SINCE[target]] if target in SINCE else []) for target in CASES], ids=str
)
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
