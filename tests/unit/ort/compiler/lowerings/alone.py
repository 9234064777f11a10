"""Runs one ATen operator by itself in ONNX Runtime."""

import re
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.partition import has_kernels, results
from portico.ort.compiler.translation import translate
from portico.ort.runtime import Program, make_session
from portico.ort.settings import SessionSettings
from unit.ort.compiler.lowerings.lowered import taken_apart

_NEEDS_NUMBERS = re.compile("concrete integers|with symbolic sizes")


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
