"""Cutting a graph into the parts that ONNX Runtime runs and the operators that stay in torch."""

import logging
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner, Partition
from torch.fx.passes.operator_support import create_op_support

from portico.errors import InputError
from portico.ort.compiler.decompositions import DROPOUT_MASK, FASTER_IN_TORCH
from portico.ort.compiler.graph import ONNX_TYPES, Dim
from portico.ort.compiler.lowerings import LOWERINGS
from portico.ort.compiler.translation import hint, translate
from portico.ort.report import Report
from portico.ort.torch_compat import tree_map

logger = logging.getLogger(__name__)

# Views: torch changes metadata only, where ONNX Runtime would copy.
FREE_VIEWS = {
    torch.ops.aten.permute.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.squeeze.dims,
    torch.ops.aten.unsqueeze.default,
}
# They run in torch on purpose: random numbers are drawn as in eager mode, and views are free there.
_AT_HOME = {DROPOUT_MASK, torch.ops.aten.sym_size.int, *FREE_VIEWS}
# About a layer of a transformer. More stages cost calls of sessions; fewer free saved tensors later.
_STAGE_NODES = 120
# Between convolutions, which run in torch, a call of a session costs more than it gains for fewer operators: ONNX
# Runtime computes sums and ReLUs one by one, as torch does.
_FEWEST_OPERATORS = 5
# A gelu takes several of them per number.
_GELU = {torch.ops.aten.gelu.default, torch.ops.aten.gelu_backward.default}
_LEFT_IN_TORCH = "portico_left_in_torch"
# Stands in for unknown sizes where tensors are compared, so that the cut does not depend on the first batch.
_NOMINAL_SIZE = 64
_NO_LOWERING = "no lowering to ONNX for these tensors"
_FATAL = 4
# A whole model in one of these gets an error that names the dtype, instead of running in torch operator by operator.
_REFUSED = {torch.float64, torch.bfloat16}
_tried: dict[Any, bool] = {}


def partition_graph(module: fx.GraphModule, *, is_in_stages: bool = False) -> fx.GraphModule:
    """Return the graph, which is changed, with each part that ONNX Runtime can run as a submodule ``fused_0`` etc.

    With ``is_in_stages``, long parts are cut, so that inputs can be freed between two stages.
    """
    _view_outputs_outside(module.graph)
    support = create_op_support(lambda _, node: _is_supported(node))
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    parts = _drop_small(partitioner.propose_partitions(), module.graph)
    if is_in_stages:
        parts = [stage for part in parts for stage in cut_into_stages(part)]
    whole = partitioner.fuse_partitions(parts)
    for node in whole.graph.nodes:
        # Outputs of ONNX Runtime are contiguous, where torch may have counted on other strides.
        if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            node.target = torch.ops.aten.reshape.default
    return whole


def _drop_small(parts: list[Partition], graph: fx.Graph) -> list[Partition]:
    """Leave parts of a few sums and the like to torch, in graphs that operators faster in torch cut to pieces."""
    if not any(node.target in FASTER_IN_TORCH for node in graph.nodes):
        return parts
    kept = []
    for part in parts:
        operators = [node.target for node in part.nodes if node.target not in FREE_VIEWS]
        if len(operators) < _FEWEST_OPERATORS and all(_is_cheap(target) for target in operators):
            for node in part.nodes:
                node.meta[_LEFT_IN_TORCH] = True
        else:
            kept.append(part)
    return kept


def _is_cheap(target: object) -> bool:
    is_pointwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    return is_pointwise and target not in _GELU


def _view_outputs_outside(graph: fx.Graph) -> None:
    """Make views that are returned outside of ONNX Runtime, even if they are used inside too."""
    output = graph.output_node()
    for node in output.all_input_nodes:
        if node.target in FREE_VIEWS:
            with graph.inserting_before(output):
                output.replace_input_with(node, _copy_view(graph, node))
            while node.target in FREE_VIEWS and not node.users:
                base = node.all_input_nodes[0]
                graph.erase_node(node)
                node = base


def _copy_view(graph: fx.Graph, node: fx.Node) -> fx.Node:
    if node.target not in FREE_VIEWS:
        return node
    base = _copy_view(graph, node.all_input_nodes[0])
    return graph.node_copy(node, lambda argument: base if argument is node.all_input_nodes[0] else argument)


def _is_supported(node: fx.Node) -> bool:
    """Return whether ``node`` has a lowering, for tensors that ONNX has types for."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and _is_supported(source)
    if node.target not in LOWERINGS or _is_faster_in_torch(node) or _only_seen_outside(node):
        return False
    has_types = all(fake.dtype in ONNX_TYPES and fake.layout is torch.strided for fake in _fakes_around(node))
    return has_types and has_kernels(node)


def _is_faster_in_torch(node: fx.Node) -> bool:
    """Return whether torch has the better kernel; for the derivative of a ReLU, whether such a kernel reads it."""
    if node.target is torch.ops.aten.threshold_backward.default:
        return any(map(_is_faster_in_torch, node.users))
    return node.target in FASTER_IN_TORCH


def _only_seen_outside(node: fx.Node) -> bool:
    """Return whether a view is only returned or read by torch: it is free outside, and a copy inside."""
    return node.target in FREE_VIEWS and not any(map(_is_supported, node.users))


def _fakes_around(node: fx.Node) -> list[torch.Tensor]:
    """Return the fake tensors of the results and of the inputs of a node."""
    values = [part.meta.get("val") for part in (node, *node.all_input_nodes)]
    flat = [each for value in values for each in (value if isinstance(value, tuple | list) else [value])]
    return [fake for fake in flat if isinstance(fake, torch.Tensor)]


# ---- Kernels ----


def has_kernels(node: fx.Node) -> bool:
    """Return whether ONNX Runtime has kernels for the lowering of an operator, by trying it once for these dtypes.

    ONNX does not define every operator for all integers and booleans, and ONNX Runtime does not implement all that
    are defined: operators without a kernel stay in ATen.
    """
    dtypes = tuple(fake.dtype for fake in _fakes_around(node))
    if not _REFUSED.isdisjoint(dtypes) or all(dtype.is_floating_point for dtype in dtypes):
        return True
    key = (node.target, dtypes)
    if key in _tried:
        return _tried[key]
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    model = translate(_alone(node)).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _FATAL
    try:
        # The CPU's kernels decide: what a CUDA device has no kernel for runs on the CPU.
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        _tried[key] = True
    except (state.NotImplemented, state.InvalidGraph):
        _tried[key] = False
    return _tried[key]


def _alone(node: fx.Node) -> fx.GraphModule:
    """Return a graph of one operator with concrete sizes."""
    graph = fx.Graph()

    def argument(source: fx.Node) -> Any:
        value = _resolve_symbols(source.meta["val"])
        if not isinstance(value, torch.Tensor):
            return value
        placeholder = graph.placeholder(source.name)
        placeholder.meta["val"] = value
        return placeholder

    placed = {source: argument(source) for source in node.all_input_nodes}
    call = graph.node_copy(node, placed.__getitem__)
    call.meta["val"] = tree_map(_resolve_symbols, node.meta["val"])
    graph.output(results(call))
    return fx.GraphModule(torch.nn.Module(), graph)


def results(call: fx.Node) -> list[fx.Node]:
    """Return a node for each tensor that a call returns, adding nodes that take them apart if there are several."""
    value = call.meta["val"]
    if isinstance(value, torch.Tensor):
        return [call]
    nodes = []
    for index, fake in enumerate(value):
        if fake is not None:
            nodes.append(call.graph.call_function(operator.getitem, (call, index)))
            nodes[-1].meta["val"] = fake
    return nodes


def _resolve_symbols(value: object) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty([hint(size) for size in value.shape], dtype=value.dtype, device="meta")
    return hint(value) if isinstance(value, torch.SymInt) else value


# ---- Stages ----


def cut_into_stages(partition: Partition) -> list[Partition]:
    """Cut ``partition`` into stages of about the same length, in the order in which they run.

    A session frees nothing while it runs. A stage ends where the fewest bytes are handed on.
    """
    # In the order of the graph, with each `getitem` right after its source.
    nodes = sorted(sorted(partition.nodes), key=_source)
    handed = _bytes_handed_on(nodes)
    starts = [0]
    while len(nodes) - starts[-1] > 3 * _STAGE_NODES // 2:
        nearest = starts[-1] + _STAGE_NODES // 2
        candidates = range(nearest, min(nearest + _STAGE_NODES, len(nodes)))
        starts.append(min(candidates, key=handed.__getitem__))
    return [Partition(partition.id, nodes[start:end]) for start, end in pairwise([*starts, len(nodes)])]


def _source(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def _bytes_handed_on(nodes: Sequence[fx.Node]) -> list[float]:
    """Return for each position the bytes computed before it that are read from there on."""
    positions = {node: position for position, node in enumerate(nodes)}
    handed = [0.0] * len(nodes)
    for node, position in positions.items():
        last_use = max((positions[user] for user in node.users if user in positions), default=position)
        num_bytes = _num_bytes(node.meta.get("val"))
        for between in range(position + 1, last_use + 1):
            handed[between] += num_bytes
    return handed


def _num_bytes(fake: object) -> float:
    if isinstance(fake, torch.Tensor):
        return math.prod(_nominal(dim) for dim in fake.shape) * fake.element_size()
    # A tuple is never handed on, only its elements; a number takes no memory.
    return math.inf if isinstance(fake, tuple | list) else 0


def _nominal(dim: Dim) -> int:
    if isinstance(dim, int):
        return dim
    expression = dim.node.expr
    try:
        return int(expression.subs(dict.fromkeys(expression.free_symbols, _NOMINAL_SIZE)))
    except ZeroDivisionError:  # The nominal size is not valid for this model.
        return _NOMINAL_SIZE


# ---- Operators that run in torch ----


def list_missing_lowerings(module: fx.GraphModule) -> list[str]:
    """Return the names of the operators that stayed in torch because they have no lowering for their tensors."""
    return sorted({str(node.target) for node in _find_left_in_torch(module) if _reason(node) == _NO_LOWERING})


def _reason(node: fx.Node) -> str:
    """Return why an operator stays in torch."""
    if _is_faster_in_torch(node):
        return "faster there"
    if _LEFT_IN_TORCH in node.meta:
        return "too little between operators that are faster there"
    return _NO_LOWERING


def run_in_torch(module: fx.GraphModule, unknown: Sequence[str], *, strict: bool, report: Report) -> None:
    """Count and time the operators of ``module`` that stayed in torch; ``module`` is changed.

    Raises:
        InputError: If ``strict`` is set and one is ``unknown``, that is without a lowering.
    """
    if unknown and strict:
        raise InputError(
            f"`strict=True`, but the model uses {', '.join(unknown)}, which portico cannot lower to ONNX for these "
            "tensors; leave `strict` out to run this part in torch, or change the model."
        )
    for name in unknown:
        if name not in report.fallbacks:
            logger.warning("%s has no lowering to ONNX for these tensors; it runs in torch.", name)
    for index, node in enumerate(_find_left_in_torch(module)):
        target = node.target
        assert callable(target), "only operators are left"
        fallback = report.fallback(str(target), _reason(node))
        fallback.num_nodes += 1
        name = f"fallback_{index}"
        # Not as a submodule, whose hooks take longer to look for than some of these operators take.
        setattr(module, name, partial(fallback.time_call, target))
        node.op, node.target = "call_module", name


def _find_left_in_torch(module: fx.GraphModule) -> list[fx.Node]:
    # Other calls, such as `getitem` and those of Python's numbers, compute no tensor.
    operators = [node for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return [node for node in operators if node.target not in _AT_HOME]


class Called(torch.nn.Module):
    """A function as a submodule, which a graph can call; the function is not pickled with the graph."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()
        if function is not None:
            self.forward = function

    def __reduce__(self) -> Any:
        return Called, ()
