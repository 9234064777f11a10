"""Matrix products, of experts too, and scaled-dot-product attention; convolution and 2-d max pooling, forward only."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from portico.compat.transformers import products_of_experts
from portico.ort.compiler.graph import MICROSOFT, Graph, Operand, Size, Value, same_shape
from portico.ort.compiler.lowerings.reductions import reduce
from portico.ort.compiler.lowerings.registry import lowers

aten = torch.ops.aten


@lowers(aten.mm.default, aten.bmm.default)
def matmul(graph: Graph, x: Value, y: Value) -> Value:
    return graph.op("MatMul", x, y)


@lowers(aten.addmm.default)
def addmm(graph: Graph, bias: Value, x: Value, y: Value, *, beta: Operand = 1, alpha: Operand = 1) -> Value:
    if graph.out.dtype.is_floating_point and alpha == beta == 1:
        return graph.op("Gemm", x, y, bias)
    return baddbmm(graph, bias, x, y, beta=beta, alpha=alpha)


@lowers(aten.baddbmm.default)
def baddbmm(graph: Graph, bias: Value, x: Value, y: Value, *, beta: Operand = 1, alpha: Operand = 1) -> Value:
    product = graph.op("MatMul", x, y)
    if alpha != 1:
        product = graph.op("Mul", product, graph.operand(alpha))
    if beta == 0:
        # Torch ignores `bias` altogether then, even where it is NaN.
        return graph.op("Expand", product, graph.vector(graph.out.shape))
    if beta != 1:
        bias = graph.op("Mul", bias, graph.operand(beta))
    return graph.op("Add", product, bias)


# ---- Mixtures of experts ----


@lowers(*products_of_experts("grouped_mm_fallback"))
def grouped_matmul(graph: Graph, x: Value, weight: Value, ends: Value) -> Value:
    """Return the product of each group of rows ``[rows, in]`` with its matrix of ``weight``, ``[experts, in, out]``.

    Group ``i`` ends before row ``ends[i]``; rows after the last group have a product of zero.
    """
    return _multiply(graph, _groups(graph, x, ends), _matrices(graph, weight), weight.dims[2], x.dtype)


@lowers(*products_of_experts("grouped_mm_fallback_backward"))
def grouped_matmul_backward(graph: Graph, x: Value, weight: Value, ends: Value, grad: Value) -> tuple[Value, Value]:
    rows, grads = _groups(graph, x, ends), _groups(graph, grad, ends)
    transposed = (graph.transpose(matrix, [1, 0]) for matrix in _matrices(graph, weight))
    grad_x = _multiply(graph, grads, transposed, weight.dims[1], x.dtype)
    pairs = zip(rows[:-1], grads[:-1], strict=True)
    products = (graph.op("MatMul", graph.transpose(group, [1, 0]), slope) for group, slope in pairs)
    return grad_x, graph.op("Concat", *(graph.op("Unsqueeze", each, graph.axes(0)) for each in products), axis=0)


def _groups(graph: Graph, rows: Value, ends: Value) -> tuple[Value, ...]:
    """Return the rows of each group, and those after the last."""
    ends_of_all = graph.op("Concat", graph.cast(ends, torch.int64), graph.op("Shape", rows, start=0, end=1), axis=0)
    starts = graph.op("Concat", graph.axes(0), graph.cast(ends, torch.int64), axis=0)
    sizes = graph.op("Sub", ends_of_all, starts)
    return graph.op("Split", rows, sizes, outputs=int(ends.dims[0]) + 1, axis=0)


def _matrices(graph: Graph, weight: Value) -> Iterator[Value]:
    """Yield each matrix, transposed only after it is taken from the others: then the product does it."""
    source = graph.find_transposed(weight, [0, 2, 1])
    for index in range(int(weight.dims[0])):
        matrix = graph.op("Gather", source or weight, graph.constant(index, torch.int64), axis=0)
        yield matrix if source is None else graph.transpose(matrix, [1, 0])


def _multiply(
    graph: Graph, groups: Sequence[Value], matrices: Iterable[Value], width: Size, dtype: torch.dtype | None
) -> Value:
    *groups, rest = groups
    products = [graph.op("MatMul", group, matrix) for group, matrix in zip(groups, matrices, strict=True)]
    shape = graph.op("Concat", graph.op("Shape", rest, start=0, end=1), graph.vector([width]), axis=0)
    return graph.op("Concat", *products, graph.op("Expand", graph.scalar(0, dtype or torch.float32), shape), axis=0)


# ---- Attention ----


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    graph: Graph,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    is_differentiated = any(user.args[1] == 1 for user in graph.node.users)
    if not is_differentiated and not graph.is_standard and _is_fusible(query, key, is_causal, attn_mask):
        # Only a backward reads logsumexp; without one, ONNX Runtime has a fused kernel that goes head by head.
        return _alive(graph, _fuse_attention(graph, query, key, value, attn_mask, scale), attn_mask), query
    scores = _scores(graph, query, key, is_causal, attn_mask, scale)
    highest = reduce(graph, "ReduceMax", scores, -1, True)
    total = reduce(graph, "ReduceSum", graph.op("Exp", graph.op("Sub", scores, highest)), -1, True)
    logsumexp = graph.op("Squeeze", graph.op("Add", graph.op("Log", total), highest), graph.axes(-1))
    return _alive(graph, graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value), attn_mask), logsumexp


def _fuse_attention(
    graph: Graph, query: Value, key: Value, value: Value, attn_mask: Value | None, scale: float | None
) -> Value:
    """Return attention by one operator, whose inputs and output are ``[batch, length, heads * width]``."""
    batch, num_heads, length, width = query.dims
    joined = [
        graph.reshape(graph.transpose(part, [0, 2, 1, 3]), [batch, rows, heads * columns])
        for part in (query, key, value)
        for _, heads, rows, columns in [part.dims]
    ]
    out = graph.op(
        "MultiHeadAttention",
        *joined, None, None, _clamp_mask(graph, attn_mask),
        domain=MICROSOFT, num_heads=num_heads, scale=1 / math.sqrt(width) if scale is None else float(scale),
    )  # fmt: skip
    return graph.transpose(graph.reshape(out, [batch, length, num_heads, value.dims[-1]]), [0, 2, 1, 3])


def _is_fusible(query: Value, key: Value, is_causal: bool, attn_mask: Value | None) -> bool:
    """Return whether ``MultiHeadAttention`` applies, which broadcasts a mask over batch and heads only."""
    batch, num_heads, length, width = query.dims
    if is_causal or query.dtype is not torch.float32 or not isinstance(num_heads, int) or not isinstance(width, int):
        return False
    if not same_shape((batch, num_heads), key.dims[:2]):
        return False
    return attn_mask is None or (attn_mask.rank == 4 and same_shape(attn_mask.dims[2:], (length, key.dims[2])))


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_backward(
    graph: Graph,
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
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    swapped = [0, 1, 3, 2]
    grad = _alive(graph, grad, attn_mask)
    scores = _scores(graph, query, key, is_causal, attn_mask, scale)
    probabilities = graph.op("Exp", graph.op("Sub", scores, graph.op("Unsqueeze", logsumexp, graph.axes(-1))))
    grad_value = graph.op("MatMul", graph.op("Transpose", probabilities, perm=swapped), grad)
    grad_probabilities = graph.op("MatMul", grad, graph.op("Transpose", value, perm=swapped))
    # rowsum(P * dP) = rowsum(O * dO), and the latter is smaller: FlashAttention (arXiv:2205.14135), appendix B.2.
    total = reduce(graph, "ReduceSum", graph.op("Mul", grad, out), -1, True)
    grad_scores = graph.op("Mul", probabilities, graph.op("Sub", grad_probabilities, total))
    grad_scores = graph.op("Mul", grad_scores, _scale(graph, query, scale))
    grad_query = graph.op("MatMul", grad_scores, key)
    grad_key = graph.op("MatMul", graph.op("Transpose", grad_scores, perm=swapped), query)
    return grad_query, grad_key, grad_value


def _clamp_mask(graph: Graph, attn_mask: Value | None) -> Value | None:
    """Return a mask without infinities: the softmax of a row of ``-inf`` would be NaN."""
    if attn_mask is None or attn_mask.dtype is None:
        return attn_mask
    lowest = graph.constant(torch.finfo(attn_mask.dtype).min, attn_mask.dtype)
    return graph.op("Max", attn_mask, lowest)


def _alive(graph: Graph, rows: Value, attn_mask: Value | None) -> Value:
    """Zero the rows of queries that see no key, as torch's kernel does."""
    if attn_mask is None or attn_mask.dtype is None:
        return rows
    dtype = attn_mask.dtype
    seen = graph.op("Greater", reduce(graph, "ReduceMax", attn_mask, -1, True), graph.constant(-math.inf, dtype))
    return graph.op("Mul", rows, graph.cast(seen, dtype))


def _scores(
    graph: Graph, query: Value, key: Value, is_causal: bool, attn_mask: Value | None, scale: float | None
) -> Value:
    product = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.op("Mul", product, _scale(graph, query, scale))
    if attn_mask is not None:
        scores = graph.op("Add", scores, _clamp_mask(graph, attn_mask))
    if not is_causal:
        return scores
    shape = graph.vector([query.dims[2], key.dims[2]])
    seen = graph.op("Trilu", graph.op("Expand", graph.constant(True, torch.bool), shape), upper=0)
    return graph.op("Where", seen, scores, graph.constant(float("-inf"), query.dtype or torch.float32))


def _scale(graph: Graph, query: Value, scale: float | None) -> Value:
    width = query.dims[-1]
    return graph.scalar(1 / math.sqrt(int(width)) if scale is None else scale, query.dtype or torch.float32)


# ---- Convolution in any number of spatial dimensions, and pooling ----


@lowers(aten.convolution.default)
def convolution(
    graph: Graph,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    return graph.op(
        "ConvTranspose" if transposed else "Conv",
        x,
        weight,
        bias,
        strides=list(stride),
        pads=[*padding, *padding],
        dilations=list(dilation),
        output_padding=list(output_padding) if transposed else None,
        group=groups,
    )


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(
    graph: Graph,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    kernel = _both(kernel_size)
    batch = x if x.rank == 4 else graph.op("Unsqueeze", x, graph.axes(0))
    # ONNX Runtime ignores NaN: take infinity instead, and only the positions from the pooling.
    is_nan = graph.op("IsNaN", batch)
    infinity = graph.constant(float("inf"), graph.out[0].dtype)
    _, positions = graph.op(
        "MaxPool",
        graph.op("Where", is_nan, infinity, batch),
        outputs=2,
        kernel_shape=kernel,
        strides=_both(stride) if stride else kernel,
        pads=_both(padding) * 2,
        dilations=_both(dilation),
        ceil_mode=int(ceil_mode),
    )
    largest = graph.op("Gather", graph.op("Reshape", batch, graph.axes(-1)), positions)
    # ONNX counts positions in the whole tensor, torch in each channel's plane.
    plane = graph.op("ReduceProd", graph.op("Shape", x, start=-2), keepdims=0)
    positions = graph.op("Mod", positions, plane)
    if x.rank == 3:
        largest, positions = (graph.op("Squeeze", value, graph.axes(0)) for value in (largest, positions))
    return largest, positions


def _both(sizes: Sequence[int]) -> list[int]:
    """Return a number for each of two dimensions; torch accepts one for both."""
    return list(sizes) * 2 if len(sizes) == 1 else list(sizes)
