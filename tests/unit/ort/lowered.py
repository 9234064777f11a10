"""Runs a function of ATen operators in ONNX Runtime, so that tests can compare it with ATen."""

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.translation import translate
from portico.ort.runtime.program import Program
from portico.ort.runtime.session import make_session
from portico.ort.settings import SessionSettings


def in_onnxruntime(function: Any, *inputs: torch.Tensor, symbolic: bool = True) -> tuple[torch.Tensor, ...]:
    """Trace ``function``, check that every operator has a lowering, and run it; sizes are symbols, or numbers."""
    module = make_fx(function, tracing_mode="symbolic" if symbolic else "fake")(*inputs)
    module.graph.eliminate_dead_code()
    _with_sizes_outside(module)
    missing = {
        str(node.target)
        for node in module.graph.nodes
        if node.op == "call_function" and hasattr(node.target, "_schema") and node.target not in LOWERINGS
    }
    assert not missing, f"no lowering for {missing}"
    program = Program(make_session(translate(module), SessionSettings(num_threads=1)))
    result = program(*inputs, *(inputs[index].shape[axis] for index, axis in module.meta["sizes_of"]))
    return result if isinstance(result, tuple) else (result,)


def assert_agrees(function: Any, *inputs: torch.Tensor, tolerance: float | None = None) -> None:
    """Compare values, dtypes and shapes of a function in ONNX Runtime with ATen's, with and without symbols."""
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for symbolic in (False, True):
        found = in_onnxruntime(function, *inputs, symbolic=symbolic)
        for ours, theirs in zip(found, expected, strict=True):
            options = {} if tolerance is None else {"atol": tolerance, "rtol": tolerance}
            torch.testing.assert_close(ours, theirs, equal_nan=True, **options)


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
