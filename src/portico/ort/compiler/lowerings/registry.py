"""The table of lowerings: which function translates which ATen operator."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import fx

from portico.ort.compiler.graph import Graph, Value
from portico.ort.torch_compat import tree_map_only

Lowering = Callable[..., Any]
LOWERINGS: dict[Any, Lowering] = {}


@dataclass(frozen=True)
class Context:
    """What a lowering receives in addition to the operator's own arguments.

    Args:
        graph: Where nodes are added.
        out: Fake result of the operator, with the dtype and shape that the result must have.
        node: The operator in its graph.
    """

    graph: Graph
    out: Any
    node: fx.Node

    def reads_too(self, target: Any) -> bool:
        """Return whether an operator ``target`` of the graph shares an input with this one."""
        return any(user.target is target for source in self.node.all_input_nodes for user in source.users)


def lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of operators.

    It is called with a :class:`Context` and the operator's arguments, tensors and symbolic numbers as
    :class:`~portico.ort.compiler.graph.Value`, and returns a ``Value``, or a tuple of them.
    """

    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            assert target not in LOWERINGS, f"{target} has a lowering already"
            LOWERINGS[target] = lowering
        return lowering

    return register


def numbers_as_vectors(lowering: Lowering) -> Lowering:
    """Pass 0-d tensors to a lowering that takes dimensions as vectors of one element.

    Torch accepts the dimensions 0 and -1 of a 0-d tensor; ONNX does not.
    """

    @wraps(lowering)
    def widened(context: Context, x: Value, *args: Any, **kwargs: Any) -> Any:
        if x.rank:
            return lowering(context, x, *args, **kwargs)
        graph = context.graph

        def vector(value: Value) -> Value:
            is_number = value.rank == 0
            return Value(graph.op("Unsqueeze", value, graph.axes(0)).name, value.dtype, (1,)) if is_number else value

        results = lowering(context, vector(x), *tree_map_only(Value, vector, args), **kwargs)
        return tree_map_only(Value, lambda value: graph.op("Reshape", value, graph.axes()), results)

    return widened


def promoted(context: Context, dtype: torch.dtype, *operands: Any) -> list[Value]:
    """Return tensors and numbers in one dtype: ONNX promotes nothing by itself."""
    return [context.graph.scalar(operand, dtype) for operand in operands]


def common_dtype(x: Any, y: Any) -> torch.dtype:
    """Return the dtype in which torch computes with two operands, tensors or numbers."""
    return torch.result_type(*(_sample(operand) for operand in (x, y)))


def _sample(operand: Any) -> Any:
    if isinstance(operand, Value):
        return torch.empty((1,) * min(operand.rank, 1), dtype=operand.dtype)
    symbolic = {torch.SymInt: 1, torch.SymFloat: 1.0}
    return symbolic.get(type(operand), operand)
