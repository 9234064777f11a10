"""Runs a function of ATen operators in ONNX Runtime, so that tests can compare it with ATen."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from portico.ort.compiler.decompositions import decompositions
from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.translation import translate
from portico.ort.runtime import Program, make_session
from portico.ort.settings import SessionSettings


def traced(
    function: Any, *inputs: torch.Tensor, symbolic: bool = True
) -> Callable[..., tuple[torch.Tensor, ...] | torch.Tensor]:
    """Trace ``function``, check that every operator has a lowering, and return it in ONNX Runtime.

    Args:
        function: Of tensors.
        inputs: What it is traced with.
        symbolic: Whether sizes are symbols, so that tensors of other sizes may come; they are numbers otherwise.
    """
    module = taken_apart(function, *inputs, symbolic=symbolic)
    missing = {
        str(node.target)
        for node in module.graph.nodes
        if node.op == "call_function" and hasattr(node.target, "_schema") and node.target not in LOWERINGS
    }
    assert not missing, f"no lowering for {missing}"
    program = Program(make_session(translate(module), SessionSettings(num_threads=1)))
    return lambda *inputs: program(*inputs, *(inputs[index].shape[axis] for index, axis in module.meta["sizes_of"]))


def taken_apart(function: Any, *inputs: torch.Tensor, symbolic: bool) -> fx.GraphModule:
    """Trace ``function`` into operators that the compiler does not decompose further."""
    module = make_fx(function, _decompositions(), "symbolic" if symbolic else "fake")(*inputs)
    module.graph.eliminate_dead_code()
    _with_sizes_outside(module)
    return module


_decompositions = cache(decompositions)


def assert_is(found: Any, expected: Any, *, tolerance: float | None = None) -> None:
    """Compare the values, dtypes and shapes of one tensor or several."""
    pairs = zip(*(each if isinstance(each, tuple | list) else (each,) for each in (found, expected)), strict=True)
    options = {} if tolerance is None else {"atol": tolerance, "rtol": tolerance}
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, equal_nan=True, **options)


def assert_agrees(function: Any, *inputs: torch.Tensor, tolerance: float | None = None) -> None:
    """Compare a function in ONNX Runtime with ATen, with and without symbols."""
    for symbolic in (False, True):
        program = traced(function, *inputs, symbolic=symbolic)
        assert_is(program(*inputs), function(*inputs), tolerance=tolerance)


def _with_sizes_outside(module: Any) -> None:
    """Turn `sym_size` of an input into an input of its own, as the partitioner leaves them outside."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    sizes = []
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten.sym_size.int:
            source, axis = node.args
            assert source in placeholders, "sizes of intermediate results are not expected here"
            sizes.append((placeholders.index(source), axis))
            with module.graph.inserting_after(placeholders[-1]):
                size = module.graph.placeholder(f"size_{len(sizes)}")
            size.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(size)
            module.graph.erase_node(node)
            placeholders.append(size)
    module.meta["sizes_of"] = sizes
    module.recompile()
