"""Matrix products and scaled-dot-product attention."""

import math
from typing import Any

import torch
from torch import fx

from portico.ort.compiler.graph import MICROSOFT, Value, same_shape
from portico.ort.compiler.lowerings.reductions import reduced
from portico.ort.compiler.lowerings.registry import Context, lowers

aten = torch.ops.aten


@lowers(aten.mm.default, aten.bmm.default)
def matmul(context: Context, x: Value, y: Value) -> Value:
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
        # Torch ignores `bias` altogether then, even where it is NaN.
        return graph.op("Expand", product, graph.vector(context.out.shape))
    if beta != 1:
        bias = graph.op("Mul", bias, graph.scalar(beta, context.out.dtype))
    return graph.op("Add", product, bias)


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
    if not _is_read(context.node, 1) and _is_fusible(query, key, is_causal, attn_mask):
        # Only a backward reads logsumexp; without one, ONNX Runtime has a fused kernel that goes head by head.
        return _alive(context, _fused(context, query, key, value, attn_mask, scale), attn_mask), query
    scores = _scores(context, query, key, is_causal, attn_mask, scale)
    highest = reduced(graph, "ReduceMax", scores, -1, True)
    total = reduced(graph, "ReduceSum", graph.op("Exp", graph.op("Sub", scores, highest)), -1, True)
    logsumexp = graph.op("Squeeze", graph.op("Add", graph.op("Log", total), highest), graph.axes(-1))
    return _alive(context, graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value), attn_mask), logsumexp


def _fused(context: Context, query: Value, key: Value, value: Value, attn_mask: Value | None, scale: Any) -> Value:
    """Return attention by one operator, whose inputs and output are ``[batch, length, heads * width]``."""
    graph = context.graph
    batch, num_heads, length, width = query.dims
    joined = [
        graph.reshape(graph.transpose(part, [0, 2, 1, 3]), [batch, rows, heads * columns])
        for part in (query, key, value)
        for _, heads, rows, columns in [part.dims]
    ]
    out = graph.op(
        "MultiHeadAttention",
        *joined, None, None, _floored(context, attn_mask),
        domain=MICROSOFT, num_heads=num_heads, scale=1 / math.sqrt(width) if scale is None else float(scale),
    )  # fmt: skip
    return graph.transpose(graph.reshape(out, [batch, length, num_heads, value.dims[-1]]), [0, 2, 1, 3])


def _is_read(node: fx.Node, index: int) -> bool:
    return any(user.args[1] == index for user in node.users)


def _is_fusible(query: Value, key: Value, is_causal: bool, attn_mask: Value | None) -> bool:
    """Return whether ``MultiHeadAttention`` applies, which broadcasts a mask over batch and heads only."""
    batch, num_heads, length, width = query.dims
    if is_causal or query.dtype is not torch.float32 or not isinstance(num_heads, int) or not isinstance(width, int):
        return False
    if not same_shape((batch, num_heads), key.dims[:2]):
        return False
    seen = (length, key.dims[2])
    return attn_mask is None or (attn_mask.rank == 4 and same_shape(attn_mask.dims[2:], seen))


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
    grad = _alive(context, grad, attn_mask)
    scores = _scores(context, query, key, is_causal, attn_mask, scale)
    probabilities = graph.op("Exp", graph.op("Sub", scores, graph.op("Unsqueeze", logsumexp, graph.axes(-1))))
    grad_value = graph.op("MatMul", graph.op("Transpose", probabilities, perm=swapped), grad)
    grad_probabilities = graph.op("MatMul", grad, graph.op("Transpose", value, perm=swapped))
    # rowsum(P * dP) = rowsum(O * dO), and the latter is smaller: FlashAttention (arXiv:2205.14135), appendix B.2.
    total = reduced(graph, "ReduceSum", graph.op("Mul", grad, out), -1, True)
    grad_scores = graph.op("Mul", probabilities, graph.op("Sub", grad_probabilities, total))
    grad_scores = graph.op("Mul", grad_scores, _scale(context, query, scale))
    grad_query = graph.op("MatMul", grad_scores, key)
    grad_key = graph.op("MatMul", graph.op("Transpose", grad_scores, perm=swapped), query)
    return grad_query, grad_key, grad_value


def _floored(context: Context, attn_mask: Value | None) -> Value | None:
    """Return a mask without infinities: the softmax of a row of ``-inf`` would be NaN."""
    if attn_mask is None or attn_mask.dtype is None:
        return attn_mask
    lowest = context.graph.constant(torch.finfo(attn_mask.dtype).min, attn_mask.dtype)
    return context.graph.op("Max", attn_mask, lowest)


def _alive(context: Context, rows: Value, attn_mask: Value | None) -> Value:
    """Zero the rows of queries that see no key, as torch's kernel does."""
    if attn_mask is None or attn_mask.dtype is None:
        return rows
    graph, dtype = context.graph, attn_mask.dtype
    seen = graph.op("Greater", reduced(graph, "ReduceMax", attn_mask, -1, True), graph.constant(-math.inf, dtype))
    return graph.op("Mul", rows, graph.cast(seen, dtype))


def _scores(context: Context, query: Value, key: Value, is_causal: bool, attn_mask: Value | None, scale: Any) -> Value:
    graph = context.graph
    product = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.op("Mul", product, _scale(context, query, scale))
    if attn_mask is not None:
        scores = graph.op("Add", scores, _floored(context, attn_mask))
    return _causal(context, scores, query, key) if is_causal else scores


def _causal(context: Context, scores: Value, query: Value, key: Value) -> Value:
    graph = context.graph
    shape = graph.vector([query.dims[2], key.dims[2]])
    seen = graph.op("Trilu", graph.op("Expand", graph.constant(True, torch.bool), shape), upper=0)
    return graph.op("Where", seen, scores, graph.constant(float("-inf"), query.dtype or torch.float32))


def _scale(context: Context, query: Value, scale: Any) -> Value:
    width = query.dims[-1]
    return context.graph.scalar(1 / math.sqrt(int(width)) if scale is None else scale, query.dtype or torch.float32)
