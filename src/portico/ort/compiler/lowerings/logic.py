"""Element-wise comparisons, logical operators and selection by a mask."""

from typing import Any

import torch

from portico.ort.compiler.graph import Graph, Value
from portico.ort.compiler.lowerings.creation import full_like
from portico.ort.compiler.lowerings.registry import lowers

aten = torch.ops.aten


@lowers(aten.eq.Tensor, aten.eq.Scalar, op_type="Equal")
@lowers(aten.ge.Tensor, aten.ge.Scalar, op_type="GreaterOrEqual")
@lowers(aten.gt.Tensor, aten.gt.Scalar, op_type="Greater")
@lowers(aten.le.Tensor, aten.le.Scalar, op_type="LessOrEqual")
@lowers(aten.lt.Tensor, aten.lt.Scalar, op_type="Less")
def compared(graph: Graph, x: Any, y: Any, *, op_type: str) -> Value:
    dtype = torch.result_type(_sample(x), _sample(y))
    # ONNX orders no booleans.
    if dtype is torch.bool and op_type != "Equal":
        dtype = torch.int32
    return graph.op(op_type, graph.scalar(x, dtype), graph.scalar(y, dtype))


def _sample(operand: Any) -> Any:
    """Return a number or tensor of the kind by which torch chooses the dtype that it compares in."""
    if isinstance(operand, Value):
        return torch.empty((1,) * min(operand.rank, 1), dtype=operand.dtype)
    symbolic = {torch.SymInt: 1, torch.SymFloat: 1.0}
    return symbolic.get(type(operand), operand)


@lowers(aten.ne.Tensor, aten.ne.Scalar)
def ne(graph: Graph, x: Any, y: Any) -> Value:
    return graph.op("Not", compared(graph, x, y, op_type="Equal"))


@lowers(aten.logical_and.default, op_type="And")
@lowers(aten.logical_or.default, op_type="Or")
@lowers(aten.logical_xor.default, op_type="Xor")
def logical(graph: Graph, x: Value, y: Value, *, op_type: str) -> Value:
    return graph.op(op_type, graph.operand(x), graph.operand(y))


@lowers(aten.logical_not.default)
def logical_not(graph: Graph, x: Value) -> Value:
    return graph.op("Not", graph.operand(x))


@lowers(aten.bitwise_not.default)
def bitwise_not(graph: Graph, x: Value) -> Value:
    return graph.op("Not" if x.dtype is torch.bool else "BitwiseNot", x)


@lowers(aten.isnan.default, op_type="IsNaN")
@lowers(aten.isinf.default, op_type="IsInf")
def is_special(graph: Graph, x: Value, *, op_type: str) -> Value:
    # ONNX defines both for floats only; no integer is one.
    return graph.op(op_type, x) if x.is_float else full_like(graph, x, False)


@lowers(aten.where.self)
def where(graph: Graph, condition: Value, x: Any, y: Any) -> Value:
    condition, x, y = graph.cast(condition, torch.bool), graph.operand(x), graph.operand(y)
    if graph.out.dtype is not torch.bool:
        return graph.op("Where", condition, x, y)
    # ONNX Runtime's `Where` has no kernel for booleans.
    return graph.op("Or", graph.op("And", condition, x), graph.op("And", graph.op("Not", condition), y))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(graph: Graph, x: Value, mask: Value, value: Any) -> Value:
    return where(graph, mask, value, x)
