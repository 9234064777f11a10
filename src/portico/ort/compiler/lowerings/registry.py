"""Which ATen operator is lowered by which function."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from portico.ort.compiler.graph import Graph, Value

Lowering = Callable[..., Any]
LOWERINGS: dict[Any, Lowering] = {}


@dataclass(frozen=True)
class Context:
    """What a lowering is given beside the operator's own arguments.

    Args:
        graph: Where nodes are added.
        out: The fake result of the operator: its dtype and shape are those the result must have.
        node: The operator in its graph.
    """

    graph: Graph
    out: Any
    node: fx.Node

    def reads_too(self, target: Any) -> bool:
        """Return whether an operator ``target`` of the graph has an input in common with this one."""
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
    """Let a lowering that is told dimensions see a vector of one element in the place of a tensor without any.

    So torch does: the dimensions 0 and -1 of a number are allowed.
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
    """Return operands, tensors and numbers, in one dtype, as ONNX wants them and torch makes them."""
    graph = context.graph
    return [
        graph.cast(operand, dtype) if isinstance(operand, Value) else graph.scalar(operand, dtype)
        for operand in operands
    ]


def common_dtype(*operands: Any) -> torch.dtype:
    """Return the dtype that torch computes in when these operands, tensors and numbers, meet."""
    stand_ins = [
        torch.empty((1,) * min(operand.rank, 1), dtype=operand.dtype) if isinstance(operand, Value) else operand
        for operand in operands
    ]
    plain = [_plain_number(operand) for operand in stand_ins]
    result = plain[0]
    dtype = torch.result_type(result, plain[1]) if len(plain) > 1 else result.dtype
    return dtype


def _plain_number(operand: Any) -> Any:
    if isinstance(operand, torch.SymInt):
        return 1
    if isinstance(operand, torch.SymFloat):
        return 1.0
    return operand
