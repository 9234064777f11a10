"""Scaled dot product attention, as torch's flash kernel of the CPU computes it, and its derivative."""

import math
from typing import Any

import torch

from portico.ort.compiler.lowerings.reductions import reduced
from portico.ort.compiler.lowerings.registry import Context, lowers
from portico.ort.compiler.value import Value

aten = torch.ops.aten


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    context: Context,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: Any = None,
) -> tuple[Value, Value]:
    graph = context.graph
    scores = _scores(context, query, key, is_causal, attn_mask, scale)
    highest = reduced(graph, "ReduceMax", scores, -1, True)
    total = reduced(graph, "ReduceSum", graph.op("Exp", graph.op("Sub", scores, highest)), -1, True)
    logsumexp = graph.op("Squeeze", graph.op("Add", graph.op("Log", total), highest), graph.axes(-1))
    return graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value), logsumexp


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_backward(
    context: Context,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: Any = None,
) -> tuple[Value, Value, Value]:
    graph, swapped = context.graph, [0, 1, 3, 2]
    scores = _scores(context, query, key, is_causal, attn_mask, scale)
    probabilities = graph.op("Exp", graph.op("Sub", scores, graph.op("Unsqueeze", logsumexp, graph.axes(-1))))
    grad_value = graph.op("MatMul", graph.op("Transpose", probabilities, perm=swapped), grad)
    grad_probabilities = graph.op("MatMul", grad, graph.op("Transpose", value, perm=swapped))
    # The row sum of probabilities times their gradient is that of the output times its gradient, which is smaller.
    total = reduced(graph, "ReduceSum", graph.op("Mul", grad, out), -1, True)
    grad_scores = graph.op("Mul", probabilities, graph.op("Sub", grad_probabilities, total))
    grad_scores = graph.op("Mul", grad_scores, _scale(context, query, scale))
    grad_query = graph.op("MatMul", grad_scores, key)
    grad_key = graph.op("MatMul", graph.op("Transpose", grad_scores, perm=swapped), query)
    return grad_query, grad_key, grad_value


def _scores(context: Context, query: Value, key: Value, is_causal: bool, attn_mask: Value | None, scale: Any) -> Value:
    graph = context.graph
    product = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.op("Mul", product, _scale(context, query, scale))
    if attn_mask is not None:
        scores = graph.op("Add", scores, attn_mask)
    return _causal(context, scores, query, key) if is_causal else scores


def _causal(context: Context, scores: Value, query: Value, key: Value) -> Value:
    graph = context.graph
    shape = graph.vector([(query.shape or ())[2], (key.shape or ())[2]])
    seen = graph.op("Trilu", graph.op("Expand", graph.constant(True, torch.bool), shape), upper=0)
    return graph.op("Where", seen, scores, graph.constant(float("-inf"), query.dtype or torch.float32))


def _scale(context: Context, query: Value, scale: Any) -> Value:
    width = (query.shape or ())[-1]
    return context.graph.scalar(1 / math.sqrt(int(width)) if scale is None else scale, query.dtype or torch.float32)
