"""Calls of scaled dot product attention and its derivative."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import tensors

aten = torch.ops.aten
NUMBERS = (-2.5, -1.0, -0.75, 0.0, 0.25, 1.0, 1.5)
ALL_SEEN, SOME_SEEN = (0.0,), (0.0, 0.0, -1e4)


@st.composite
def attentions(draw):
    """Draw query, key and value, whether it is causal, and the options."""
    batch, heads, queries, keys, width = (draw(st.integers(1, 3)) for _ in range(5))
    # Torch's kernel reads the last dimension as if it were contiguous.
    query = draw(tensors(torch.float32, (batch, heads, queries, width), NUMBERS)).contiguous()
    key, value = (draw(tensors(torch.float32, (batch, heads, keys, width), NUMBERS)).contiguous() for _ in range(2))
    is_causal = draw(st.booleans()) and queries == keys
    mask = None
    if not is_causal and draw(st.booleans()):
        shape = draw(st.sampled_from([(queries, keys), (batch, 1, queries, keys), (batch, heads, queries, keys)]))
        mask = draw(tensors(torch.float32, shape, SOME_SEEN)).contiguous()
    return query, key, value, is_causal, {"attn_mask": mask, "scale": draw(st.sampled_from([None, 0.3]))}


@case(aten._scaled_dot_product_flash_attention_for_cpu.default, ulps=256, zeros_have_signs=False)
def of_attention(draw, op):
    query, key, value, is_causal, options = draw(attentions())
    return Call((query, key, value, 0.0, is_causal), options)


@case(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, ulps=256, zeros_have_signs=False)
def of_gradients_of_attention(draw, op):
    query, key, value, is_causal, options = draw(attentions())
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    out, logsumexp = flash(query, key, value, 0.0, is_causal, **options)
    grad = draw(tensors(torch.float32, tuple(out.shape), NUMBERS)).contiguous()
    return Call((grad, query, key, value, out, logsumexp, 0.0, is_causal), options)
