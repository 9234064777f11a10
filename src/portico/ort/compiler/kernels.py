"""Whether ONNX Runtime can compute an operator in the dtypes that it meets."""

import operator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from portico.ort.compiler.translation import hint, translate

_FATAL = 4
# A model in one of these is told so by name, instead of running in torch operator by operator.
_REFUSED = {torch.float64, torch.bfloat16}
_tried: dict[Any, bool] = {}


def has_kernels(node: fx.Node) -> bool:
    """Return whether ONNX Runtime has kernels for what an operator with a lowering becomes.

    ONNX does not define every operator for all integers and truth values, and ONNX Runtime does not have all that are
    defined: such an operator stays with ATen. Each operator is tried once with the same dtypes, in a graph of its own.
    """
    dtypes = tuple(fake.dtype for part in (node, *node.all_input_nodes) for fake in fakes(part.meta.get("val")))
    if not _REFUSED.isdisjoint(dtypes) or all(dtype.is_floating_point for dtype in dtypes):
        return True
    key = (node.target, dtypes)
    if key not in _tried:
        _tried[key] = _is_accepted(_alone(node))
    return _tried[key]


def fakes(value: Any) -> list[torch.Tensor]:
    """Return the tensors that a node stands for: one, several, or none."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [fake for fake in value if isinstance(fake, torch.Tensor)] if isinstance(value, tuple | list) else []


def _is_accepted(module: fx.GraphModule) -> bool:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _FATAL
    try:
        # What a CUDA device has no kernel for runs on the CPU, so that the CPU's kernels are those that decide.
        onnxruntime.InferenceSession(
            translate(module).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except (state.NotImplemented, state.InvalidGraph):
        return False
    return True


def _alone(node: fx.Node) -> fx.GraphModule:
    """Return a graph of one operator, with numbers for all sizes."""
    graph = fx.Graph()

    def argument(source: fx.Node) -> Any:
        value = _without_symbols(source.meta["val"])
        if not isinstance(value, torch.Tensor):
            return value
        placeholder = graph.placeholder(source.name)
        placeholder.meta["val"] = value
        return placeholder

    placed = {source: argument(source) for source in node.all_input_nodes}
    call = graph.node_copy(node, placed.__getitem__)
    call.meta["val"] = tree_map(_without_symbols, node.meta["val"])
    graph.output(results(call))
    return fx.GraphModule(torch.nn.Module(), graph)


def results(call: fx.Node) -> list[fx.Node]:
    """Return a node for each tensor that a call returns, behind which nodes are added if there are several."""
    value = call.meta["val"]
    if isinstance(value, torch.Tensor):
        return [call]
    nodes = []
    for index, fake in enumerate(value):
        if fake is not None:
            nodes.append(call.graph.call_function(operator.getitem, (call, index)))
            nodes[-1].meta["val"] = fake
    return nodes


def _without_symbols(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty([hint(size) for size in value.shape], dtype=value.dtype, device="meta")
    return hint(value) if isinstance(value, torch.SymInt) else value
