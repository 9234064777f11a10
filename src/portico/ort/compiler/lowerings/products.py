"""Matrix products, scaled-dot-product attention, convolution and 2-d max pooling, and their derivatives."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from portico.ort.compiler.graph import MICROSOFT, Graph, Value, same_shape
from portico.ort.compiler.lowerings.indexing import padded
from portico.ort.compiler.lowerings.reductions import reduced
from portico.ort.compiler.lowerings.registry import lowers

aten = torch.ops.aten


@lowers(aten.mm.default, aten.bmm.default)
def matmul(graph: Graph, x: Value, y: Value) -> Value:
    return graph.op("MatMul", x, y)


@lowers(aten.addmm.default)
def addmm(graph: Graph, bias: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    if graph.out.dtype.is_floating_point and alpha == beta == 1:
        return graph.op("Gemm", x, y, bias)
    return baddbmm(graph, bias, x, y, beta=beta, alpha=alpha)


@lowers(aten.baddbmm.default)
def baddbmm(graph: Graph, bias: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    product = graph.op("MatMul", x, y)
    if alpha != 1:
        product = graph.op("Mul", product, graph.operand(alpha))
    if beta == 0:
        # Torch ignores `bias` altogether then, even where it is NaN.
        return graph.op("Expand", product, graph.vector(graph.out.shape))
    if beta != 1:
        bias = graph.op("Mul", bias, graph.operand(beta))
    return graph.op("Add", product, bias)


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
    scale: Any = None,
) -> tuple[Value, Value]:
    is_differentiated = any(user.args[1] == 1 for user in graph.node.users)
    if not is_differentiated and not graph.is_standard and _is_fusible(query, key, is_causal, attn_mask):
        # Only a backward reads logsumexp; without one, ONNX Runtime has a fused kernel that goes head by head.
        return _alive(graph, _fused(graph, query, key, value, attn_mask, scale), attn_mask), query
    scores = _scores(graph, query, key, is_causal, attn_mask, scale)
    highest = reduced(graph, "ReduceMax", scores, -1, True)
    total = reduced(graph, "ReduceSum", graph.op("Exp", graph.op("Sub", scores, highest)), -1, True)
    logsumexp = graph.op("Squeeze", graph.op("Add", graph.op("Log", total), highest), graph.axes(-1))
    return _alive(graph, graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value), attn_mask), logsumexp


def _fused(graph: Graph, query: Value, key: Value, value: Value, attn_mask: Value | None, scale: Any) -> Value:
    """Return attention by one operator, whose inputs and output are ``[batch, length, heads * width]``."""
    batch, num_heads, length, width = query.dims
    joined = [
        graph.reshape(graph.transpose(part, [0, 2, 1, 3]), [batch, rows, heads * columns])
        for part in (query, key, value)
        for _, heads, rows, columns in [part.dims]
    ]
    out = graph.op(
        "MultiHeadAttention",
        *joined, None, None, _floored(graph, attn_mask),
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
    scale: Any = None,
) -> tuple[Value, Value, Value]:
    swapped = [0, 1, 3, 2]
    grad = _alive(graph, grad, attn_mask)
    scores = _scores(graph, query, key, is_causal, attn_mask, scale)
    probabilities = graph.op("Exp", graph.op("Sub", scores, graph.op("Unsqueeze", logsumexp, graph.axes(-1))))
    grad_value = graph.op("MatMul", graph.op("Transpose", probabilities, perm=swapped), grad)
    grad_probabilities = graph.op("MatMul", grad, graph.op("Transpose", value, perm=swapped))
    # rowsum(P * dP) = rowsum(O * dO), and the latter is smaller: FlashAttention (arXiv:2205.14135), appendix B.2.
    total = reduced(graph, "ReduceSum", graph.op("Mul", grad, out), -1, True)
    grad_scores = graph.op("Mul", probabilities, graph.op("Sub", grad_probabilities, total))
    grad_scores = graph.op("Mul", grad_scores, _scale(graph, query, scale))
    grad_query = graph.op("MatMul", grad_scores, key)
    grad_key = graph.op("MatMul", graph.op("Transpose", grad_scores, perm=swapped), query)
    return grad_query, grad_key, grad_value


def _floored(graph: Graph, attn_mask: Value | None) -> Value | None:
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
    seen = graph.op("Greater", reduced(graph, "ReduceMax", attn_mask, -1, True), graph.constant(-math.inf, dtype))
    return graph.op("Mul", rows, graph.cast(seen, dtype))


def _scores(graph: Graph, query: Value, key: Value, is_causal: bool, attn_mask: Value | None, scale: Any) -> Value:
    product = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.op("Mul", product, _scale(graph, query, scale))
    if attn_mask is not None:
        scores = graph.op("Add", scores, _floored(graph, attn_mask))
    if not is_causal:
        return scores
    shape = graph.vector([query.dims[2], key.dims[2]])
    seen = graph.op("Trilu", graph.op("Expand", graph.constant(True, torch.bool), shape), upper=0)
    return graph.op("Where", seen, scores, graph.constant(float("-inf"), query.dtype or torch.float32))


def _scale(graph: Graph, query: Value, scale: Any) -> Value:
    width = query.dims[-1]
    return graph.scalar(1 / math.sqrt(int(width)) if scale is None else scale, query.dtype or torch.float32)


# ---- Convolution in any number of spatial dimensions, and pooling ----


class _Window(NamedTuple):
    """How a convolution moves over its input, in the order of ATen's arguments."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


@lowers(aten.convolution.default)
def convolution(graph: Graph, x: Value, weight: Value, bias: Value | None, *numbers: Any) -> Value:
    window = _Window(*numbers)
    attributes: dict[str, Any] = {"strides": list(window.stride), "dilations": list(window.dilation)}
    if window.transposed:
        attributes["output_padding"] = list(window.output_padding)
    pads = [*window.padding, *window.padding]
    op_type = "ConvTranspose" if window.transposed else "Conv"
    return graph.op(op_type, x, weight, bias, group=window.groups, pads=pads, **attributes)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    graph: Graph, grad: Value, x: Value, weight: Value, bias_sizes: Sequence[int] | None, *numbers: Any
) -> tuple[Value | None, ...]:
    *sizes, output_mask = numbers
    window = _Window(*sizes)
    grads: list[Value | None] = [None, None, None]
    if output_mask[0] and window.transposed:
        grads[0] = convolution(graph, grad, weight, None, *window._replace(transposed=False))
    elif output_mask[0]:
        grads[0] = _gradient_of_input(graph, grad, x, weight, window)
    if output_mask[1]:
        narrow, wide = (x, grad) if window.transposed else (grad, x)
        grads[1] = _gradient_of_weight(graph, wide, narrow, weight, window)
    if output_mask[2]:
        grads[2] = reduced(graph, "ReduceSum", grad, [0, *range(2, grad.rank)])
    return tuple(grads)


def _gradient_of_input(graph: Graph, grad: Value, x: Value, weight: Value, window: _Window) -> Value:
    """Return the gradient of the input: a transposed convolution, cut to the input without its padding.

    Fewer than ``stride`` elements at the far end may have been in no window: their gradient is zero.
    """
    spatial, (stride, padding) = list(range(2, x.rank)), window[:2]
    strides, dilations = list(stride), list(window.dilation)
    whole = graph.op("ConvTranspose", grad, weight, strides=strides, dilations=dilations, group=window.groups)
    if not any(padding) and all(step == 1 for step in stride):
        return whole
    whole = padded(graph, Value(whole.name, shape=x.shape), [0] * len(spatial), [step - 1 for step in stride])
    start = graph.constant(list(padding), torch.int64)
    end = graph.op("Add", start, graph.op("Shape", x, start=2))
    return graph.op("Slice", whole, start, end, graph.axes(*spatial))


def _gradient_of_weight(graph: Graph, wide: Value, narrow: Value, weight: Value, window: _Window) -> Value:
    """Return the gradient of the weight, which sums ``narrow`` times the window of ``wide`` that each element saw.

    This is a convolution with batch and channels swapped, and with stride and dilation swapped.
    """
    rank, groups = len(weight.dims), window.groups
    swapped = [1, 0, *range(2, rank)]
    by_channel = graph.transpose(wide, swapped)
    if groups > 1:
        # [N, G * C, ...] to [C, G * N, ...]: each group convolves its own part.
        sizes = [graph.dimension(wide, axis) for axis in range(2, rank)]
        split = graph.op("Reshape", wide, graph.vector([0, groups, -1, *sizes]))
        split = graph.op("Transpose", split, perm=[2, 1, 0, *range(3, rank + 1)])
        by_channel = graph.op("Reshape", split, graph.vector([0, -1, *sizes]))
    narrow = graph.transpose(narrow, swapped)
    swapped_window = window._replace(stride=window.dilation, dilation=window.stride, transposed=False)
    product = convolution(graph, by_channel, narrow, None, *swapped_window)
    # Elements at the far end that are in no window make the product larger than the kernel.
    kernel = list(weight.dims[2:])
    spatial = graph.axes(*range(2, rank))
    product = graph.op("Slice", product, graph.constant([0] * len(kernel), torch.int64), graph.vector(kernel), spatial)
    return graph.transpose(product, swapped)


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
    is_nan, infinity = graph.op("IsNaN", batch), graph.constant(float("inf"), graph.out[0].dtype)
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


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(graph: Graph, grad: Value, x: Value, *window_and_indices: Any) -> Value:
    indices = window_and_indices[-1]
    # `Reshape` keeps a dimension of 0 and infers one of -1: this flattens each plane.
    as_rows = graph.constant([0] * (x.rank - 2) + [-1], torch.int64)
    rows, positions, updates = (graph.op("Reshape", value, as_rows) for value in (x, indices, grad))
    zeros = graph.op("Expand", graph.operand(0), graph.op("Shape", rows))
    scattered = graph.op("ScatterElements", zeros, positions, updates, axis=-1, reduction="add")
    return graph.op("Reshape", scattered, graph.op("Shape", x))


def _both(sizes: Sequence[int]) -> list[int]:
    """Return a number for each of two dimensions; torch accepts one for both."""
    return list(sizes) * 2 if len(sizes) == 1 else list(sizes)
