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
    if context.out.dtype.is_floating_point and alpha == beta == 1:
        return context.graph.op("Gemm", x, y, bias)
    return baddbmm(context, bias, x, y, beta=beta, alpha=alpha)


@lowers(aten.baddbmm.default)
def baddbmm(context: Context, bias: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    graph = context.graph
    product = graph.op("MatMul", x, y)
    if alpha != 1:
        product = graph.op("Mul", product, graph.scalar(alpha, context.out.dtype))
    if beta == 0:
        # What is not a number is left out as well.
        return graph.op("Expand", product, graph.vector(context.out.shape))
    if beta != 1:
        bias = graph.op("Mul", bias, graph.scalar(beta, context.out.dtype))
    return graph.op("Add", product, bias)
