"""From an FX graph of ATen operators to an ONNX model."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import torch
from torch import fx

from portico.ort.compiler.graph import Dim, Graph, Value
from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.torch_compat import unset_fake_temporarily

CALLING = "portico"


def translate(
    module: fx.GraphModule,
    *,
    weights: Mapping[str, tuple[str, torch.Tensor]] | None = None,
    output_names: Sequence[str] = (),
    is_standard: bool = False,
) -> onnx.ModelProto:
    """Translate a graph of ATen operators, all of which have a lowering.

    The metadata of the model holds under :data:`CALLING` how to call it, as a JSON list, so that it survives in a
    file: for each input the permutation that makes it contiguous, or null if it is contiguous; and the number of
    nodes, before ONNX Runtime fuses them.

    Args:
        module: The graph.
        weights: Inputs to store in the model as weights: by input name, the name to store and the tensor.
        output_names: Names of the outputs, where they matter.
        is_standard: Whether to use no operators of ONNX Runtime's own.
    """
    graph = Graph(is_standard=is_standard)
    values: dict[fx.Node, Any] = {}
    input_orders = []
    # torch.compile calls its backend under a FakeTensorMode; the constants of the model must be real.
    with unset_fake_temporarily():
        for node in module.graph.nodes:
            if node.op == "output":
                _declare_outputs(graph, node, values, output_names)
            elif node.op == "get_attr":
                tensor = getattr(module, str(node.target))
                values[node] = graph.constant(tensor, tensor.dtype)
            elif node.op == "call_function":
                values[node] = _translate_call(graph, node, values)
            elif weights and node.name in weights:
                name, tensor = weights[node.name]
                values[node] = graph.initializer(tensor, name)
            else:
                values[node], order = _declare_input(graph, node)
                input_orders.append(order)
        model = graph.model()
    onnx.helper.set_model_props(model, {CALLING: json.dumps([input_orders, len(model.graph.node)])})
    return model


def _declare_input(graph: Graph, node: fx.Node) -> tuple[Value, tuple[int, ...] | None]:
    """Return an input of the graph, and the permutation that makes it contiguous."""
    fake = node.meta["val"]
    if not isinstance(fake, torch.Tensor):
        number = graph.input(node.name, torch.int64, ())
        graph.declare_number(fake, number)
        return number, None
    order = memory_order(fake)
    if order is None:
        return graph.input(node.name, fake.dtype, fake.shape), None
    stored = graph.input(node.name, fake.dtype, [fake.shape[axis] for axis in order])
    return _annotate(graph.transpose(stored, [order.index(axis) for axis in range(len(order))]), fake), order


def _translate_call(graph: Graph, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """Return what a node computes, annotated with the dtypes and shapes of torch's fake results."""
    args: Any = fx.node.map_arg(node.args, values.__getitem__)
    kwargs: Any = fx.node.map_arg(node.kwargs, values.__getitem__)
    if node.target is operator.getitem:
        return args[0][args[1]]
    out = node.meta["val"]
    if isinstance(out, torch.SymInt):
        return graph.size(out)
    graph.node, graph.out = node, out
    return _annotate(LOWERINGS[node.target](graph, *args, **kwargs), out)


def _annotate(result: Any, out: Any) -> Any:
    if isinstance(out, tuple | list):
        return tuple(_annotate(value, fake) for value, fake in zip(result, out, strict=True))
    if result is None or out is None:
        return result
    return Value(result.name, out.dtype, tuple(out.shape))


def _declare_outputs(graph: Graph, node: fx.Node, values: Mapping[fx.Node, Any], output_names: Sequence[str]) -> None:
    results: Any = node.args[0]
    results = results if isinstance(results, tuple | list) else [results]
    names: Sequence[str | None] = output_names or [None] * len(results)
    for result, name in zip(results, names, strict=True):
        fake = result.meta["val"]
        graph.output(values[result], fake.dtype, fake.dim(), name)


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the permutation that makes a transposed tensor contiguous, or ``None`` if it needs none or has none."""
    if tensor.is_contiguous() or tensor.dim() < 2:
        return None
    strides = [hint(stride) for stride in tensor.stride()]
    order = tuple(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))
    return order if tensor.permute(order).is_contiguous() else None


def hint(number: Dim) -> int:
    """Return a number; for a symbolic one, its value in the tensors that the graph was traced with."""
    return number if isinstance(number, int) else int(number.node.hint)
