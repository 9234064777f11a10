"""Calls of matrix products, convolutions, normalisations, attention, and their derivatives."""

import torch
from hypothesis import strategies as st
from hypothesis.strategies import sampled_from as pick

from portico.compat.transformers import products_of_experts
from unit.ort.compiler.lowerings.cases import (
    FLOATS,
    MODERATE,
    UNUSUAL,
    Call,
    add,
    axes_of,
    case,
    dim,
    maybe,
    of,
    tensors,
)

aten = torch.ops.aten
flags = st.booleans()

# ---- Matrix products ----

sizes = st.integers(0, 3)
DTYPES = (*FLOATS, torch.int64, torch.int32)


def _factors(draw, *batch):
    dtype = draw(pick(DTYPES))
    rows, inner, columns = (draw(sizes) for _ in range(3))
    numbers = UNUSUAL if dtype.is_floating_point else (0, 1, -2, 3)
    x, y = (draw(tensors(dtype, (*batch, *shape), numbers)) for shape in ((rows, inner), (inner, columns)))
    return x, y, numbers


@case(aten.mm.default, ulps=8, zeros_have_signs=False)
def of_two_matrices(draw, op):
    x, y, _ = _factors(draw)
    return Call((x, y))


@case(aten.bmm.default, ulps=8, zeros_have_signs=False)
def of_two_batches_of_matrices(draw, op):
    x, y, _ = _factors(draw, draw(sizes))
    return Call((x, y))


def _scales(draw, dtype):
    factors = (1, 0.5, -2) if dtype.is_floating_point else (1, -2)
    return {"alpha": draw(pick(factors)), "beta": draw(pick((*factors, 0)))}


def _added(draw, x, y, numbers, *batch):
    product = (*batch, x.shape[-2], y.shape[-1])
    shape = [draw(pick([size, 1])) for size in product][draw(st.integers(0, 1)) :]
    return draw(tensors(x.dtype, tuple(shape), numbers))


@case(aten.addmm.default, ulps=8, zeros_have_signs=False)
def of_a_sum_with_a_product(draw, op):
    x, y, numbers = _factors(draw)
    return Call((_added(draw, x, y, numbers), x, y), _scales(draw, x.dtype))


@case(aten.baddbmm.default, ulps=8, zeros_have_signs=False)
def of_a_sum_with_products(draw, op):
    batch = draw(sizes)
    x, y, numbers = _factors(draw, batch)
    return Call((_added(draw, x, y, numbers, batch), x, y), _scales(draw, x.dtype))


def _experts(draw):
    """Draw rows, a matrix for each expert, and where the rows of each end; some experts may have none."""
    counts = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
    width, columns, beyond = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 1))
    x = draw(tensors(torch.float32, (sum(counts) + beyond, width), MODERATE))
    ends = torch.tensor(counts).cumsum(0, dtype=draw(pick([torch.int32, torch.int64])))
    return x, draw(tensors(torch.float32, (len(counts), width, columns), MODERATE)), ends


@case(*products_of_experts("grouped_mm_fallback"), ulps=8, zeros_have_signs=False)
def of_experts(draw, op):
    return Call(_experts(draw))


@case(*products_of_experts("grouped_mm_fallback_backward"), ulps=8, zeros_have_signs=False)
def of_gradients_of_experts(draw, op):
    x, weight, ends = _experts(draw)
    return Call((x, weight, ends, draw(tensors(torch.float32, (len(x), weight.shape[2]), MODERATE))))


# ---- Convolution and pooling ----

# Infinity and NaN in one window are not told apart, nor are several NaNs.
POOLED = (*MODERATE, float("-inf"))


@st.composite
def convolutions(draw):
    """Draw input, weight, bias and the options of a convolution in one to three dimensions."""
    spatial, groups = draw(pick([1, 1, 2, 2, 3])), draw(pick([1, 2]))
    kernel, stride, dilation = ([draw(st.integers(1, 3)) for _ in range(spatial)] for _ in range(3))
    padding = [draw(st.integers(0, size - 1)) for size in kernel]
    transposed = draw(flags)
    beyond = [draw(st.integers(0, step - 1)) if transposed else 0 for step in stride]
    sizes = [draw(st.integers(7, 8)) if spatial < 3 else 7 for _ in range(spatial)]
    inputs, outputs = 2 * groups, groups
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    shape = (inputs, outputs // groups, *kernel) if transposed else (outputs, inputs // groups, *kernel)
    x, weight = (
        torch.randn(shape, generator=generator) for shape in ((draw(st.integers(1, 2)), inputs, *sizes), shape)
    )
    bias = draw(st.none() | tensors(torch.float32, (outputs,), MODERATE))
    return x, weight, bias, stride, padding, dilation, transposed, beyond, groups


add(aten.convolution.default, calls=st.builds(Call, convolutions()), ulps=256, zeros_have_signs=False)


@st.composite
def poolings(draw):
    """Draw the input and the options of a pooling."""
    kernel = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    stride = draw(st.just([]) | st.lists(st.integers(1, 3), min_size=1, max_size=2))
    padding, dilation = [draw(st.integers(0, min(kernel) // 2))], [draw(st.integers(1, 2))]
    x = draw(tensors((torch.float32, torch.float64), ((1, 6, 5), (1, 2, 5, 5)), POOLED)).contiguous()
    if draw(flags):
        x[..., draw(st.integers(0, 4)), draw(st.integers(0, 4))] = float("nan")
    return x, kernel, stride, padding, dilation, draw(flags)


add(aten.max_pool2d_with_indices.default, calls=st.builds(Call, poolings()))


# ---- Normalisation ----

MASKED = (*MODERATE, float("-inf"), 1e4, -1e4)


scores = tensors(FLOATS, numbers=MASKED)
SOFT = {"ulps": 16, "zeros_have_signs": False}
add(aten._softmax.default, aten._log_softmax.default, calls=of(scores, dim, st.just(False)), **SOFT)
add(aten._safe_softmax.default, calls=of(scores, dim, options=maybe(dtype=st.just(torch.float32))), **SOFT)


@case(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default, ulps=32, zeros_have_signs=False)
def of_gradients_of_probabilities(draw, op):
    grad = draw(tensors(FLOATS, numbers=MODERATE))
    scores, dim = draw(tensors(grad.dtype, tuple(grad.shape), MODERATE)), draw(axes_of(grad.dim()))
    forward = aten._softmax if op is aten._softmax_backward_data.default else aten._log_softmax
    return Call((grad, forward(scores, dim, False), dim, grad.dtype))


def _layer(draw):
    x = draw(tensors((torch.float32, torch.float16, torch.float64), ((3,), (2, 3), (2, 0, 3), (2, 3, 2)), MODERATE))
    inner = tuple(x.shape[draw(st.integers(0 if x.numel() else 2, x.dim() - 1)) :])
    weight, bias = (draw(st.none() | tensors(x.dtype, inner, MODERATE)) for _ in range(2))
    return x, inner, weight, bias


@case(aten.native_layer_norm.default, ulps=64, zeros_have_signs=False, in_float32=True)
def of_a_layer(draw, op):
    x, inner, weight, bias = _layer(draw)
    return Call((x, list(inner), weight, bias, draw(pick([1e-5, 1e-3, 1e-12]))))


@case(aten.native_layer_norm_backward.default, ulps=256, zeros_have_signs=False)
def of_gradients_of_a_layer(draw, op):
    x, inner, weight, bias = _layer(draw)
    grad = draw(tensors(x.dtype, tuple(x.shape), MODERATE))
    _, mean, rstd = aten.native_layer_norm(x, list(inner), weight, bias, 1e-2)
    wanted = [True, weight is not None, bias is not None]
    return Call((grad, x, list(inner), mean, rstd, weight, bias, wanted))


def _batch(draw):
    x = draw(tensors((torch.float32, torch.float64), ((2, 3), (4, 2, 2), (2, 1, 3, 2)), MODERATE))
    channels = (x.shape[1],)
    weight, bias = (draw(st.none() | tensors(x.dtype, channels, MODERATE)) for _ in range(2))
    mean = draw(tensors(x.dtype, channels, MODERATE))
    return x, weight, bias, mean, draw(tensors(x.dtype, channels, (0.5, 1.0, 2.0)))


momenta, epsilons = pick([0.1, 0.0, 1.0]), pick([1e-2, 1e-1])


@case(aten._native_batch_norm_legit.no_stats, ulps=256, zeros_have_signs=False)
def of_a_batch_without_memory(draw, op):
    return Call((*_batch(draw)[:3], True, draw(momenta), draw(epsilons)))


@case(aten._native_batch_norm_legit_no_training.default, ulps=256, zeros_have_signs=False)
def of_a_batch_after_others(draw, op):
    return Call((*_batch(draw), draw(momenta), draw(epsilons)))


# ---- Attention ----

ALL_SEEN, SOME_SEEN = (0.0,), (0.0, 0.0, -1e4)


@st.composite
def attentions(draw):
    """Draw query, key and value, whether it is causal, and the options."""
    batch, heads, queries, keys, width = (draw(st.integers(1, 3)) for _ in range(5))
    # Torch's kernel reads the last dimension as if it were contiguous.
    query = draw(tensors(torch.float32, (batch, heads, queries, width), MODERATE)).contiguous()
    key, value = (draw(tensors(torch.float32, (batch, heads, keys, width), MODERATE)).contiguous() for _ in range(2))
    is_causal = draw(flags) and queries == keys
    mask = None
    if not is_causal and draw(flags):
        shape = draw(pick([(queries, keys), (batch, 1, queries, keys), (batch, heads, queries, keys)]))
        mask = draw(tensors(torch.float32, shape, SOME_SEEN)).contiguous()
    return query, key, value, is_causal, {"attn_mask": mask, "scale": draw(pick([None, 0.3]))}


@case(aten._scaled_dot_product_flash_attention_for_cpu.default, ulps=256, zeros_have_signs=False)
def of_attention(draw, op):
    query, key, value, is_causal, options = draw(attentions())
    return Call((query, key, value, 0.0, is_causal), options)


@case(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, ulps=256, zeros_have_signs=False)
def of_gradients_of_attention(draw, op):
    query, key, value, is_causal, options = draw(attentions())
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    out, logsumexp = flash(query, key, value, 0.0, is_causal, **options)
    grad = draw(tensors(torch.float32, tuple(out.shape), MODERATE)).contiguous()
    return Call((grad, query, key, value, out, logsumexp, 0.0, is_causal), options)
