"""Matrix products."""

from typing import Any

import torch

from portico.ort.compiler.lowerings.registry import Context, lowers
from portico.ort.compiler.value import Value

aten = torch.ops.aten


@lowers(aten.mm.default)
def mm(context: Context, x: Value, y: Value) -> Value:
    return context.graph.op("MatMul", x, y)


@lowers(aten.bmm.default)
def bmm(context: Context, x: Value, y: Value) -> Value:
    return context.graph.op("MatMul", x, y)


@lowers(aten.addmm.default)
def addmm(context: Context, bias: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    return context.graph.op("Gemm", x, y, bias, alpha=float(alpha), beta=float(beta))


@lowers(aten.baddbmm.default)
def baddbmm(context: Context, bias: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    graph = context.graph
    product = graph.op("MatMul", x, y)
    if alpha != 1:
        product = graph.op("Mul", product, graph.scalar(alpha, context.out.dtype))
    if beta != 1:
        bias = graph.op("Mul", bias, graph.scalar(beta, context.out.dtype))
    return graph.op("Add", product, bias)
