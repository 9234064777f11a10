"""Which part of a graph ONNX Runtime runs, and which stays with ATen."""

import operator
from collections.abc import Mapping

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from portico.ort.compiler.dtypes import ONNX_TYPES
from portico.ort.compiler.kernels import fakes, has_kernels
from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.stages import in_stages

# They only look at memory in another way, which costs torch nothing.
FREE_VIEWS = {
    torch.ops.aten.permute.default,
    torch.ops.aten.transpose.int,
    torch.ops.aten.t.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze.dims,
    torch.ops.aten.unsqueeze.default,
}


class Lowered(OperatorSupportBase):
    """Tells which nodes ONNX Runtime can run."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        """Return whether ``node`` has a lowering, for tensors that ONNX has types for."""
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            source = node.args[0]
            return isinstance(source, fx.Node) and self.is_node_supported(submodules, source)
        if node.target not in LOWERINGS or _only_seen_outside(node):
            return False
        return _has_types(node) and has_kernels(node)


def partitioned(module: fx.GraphModule, *, is_in_stages: bool = False) -> fx.GraphModule:
    """Return the graph with every part that ONNX Runtime can run as a submodule, ``fused_0`` and so on.

    Args:
        module: Graph of ATen operators; it is changed.
        is_in_stages: Whether long parts are cut, to let go of inputs between two stages.
    """
    _view_outputs_outside(module.graph)
    partitioner = CapabilityBasedPartitioner(module, Lowered(), allows_single_node_partition=True)
    parts = partitioner.propose_partitions()
    if is_in_stages:
        parts = [stage for part in parts for stage in in_stages(part)]
    whole = partitioner.fuse_partitions(parts)
    for node in whole.graph.nodes:
        # What comes out of ONNX Runtime is contiguous, where torch may have counted on other strides.
        if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            node.target = torch.ops.aten.reshape.default
    return whole


def _view_outputs_outside(graph: fx.Graph) -> None:
    """Let a view that is returned be made of its base outside, even if it is used inside too: there it is a copy."""
    output = graph.output_node()
    for node in output.all_input_nodes:
        if node.target in FREE_VIEWS:
            with graph.inserting_before(output):
                output.replace_input_with(node, _copied_view(graph, node))
            _erase_unused(graph, node)


def _copied_view(graph: fx.Graph, node: fx.Node) -> fx.Node:
    if node.target not in FREE_VIEWS:
        return node
    base = _copied_view(graph, node.all_input_nodes[0])
    return graph.node_copy(node, lambda argument: base if argument is node.all_input_nodes[0] else argument)


def _erase_unused(graph: fx.Graph, node: fx.Node) -> None:
    while node.target in FREE_VIEWS and not node.users:
        base = node.all_input_nodes[0]
        graph.erase_node(node)
        node = base


def _has_types(node: fx.Node) -> bool:
    return all(
        fake.dtype in ONNX_TYPES and fake.layout is torch.strided
        for part in (node, *node.all_input_nodes)
        for fake in fakes(part.meta.get("val"))
    )


def _only_seen_outside(node: fx.Node) -> bool:
    """Return whether a view is only returned: made outside it costs nothing, inside it would be a copy."""
    return node.target in FREE_VIEWS and all(user.op == "output" or _only_seen_outside(user) for user in node.users)
