"""Calls of softmax, layer and batch normalisation, and their derivatives."""

import torch
from hypothesis import strategies as st

from unit.ort.compiler.lowerings.cases import Call, case
from unit.ort.compiler.lowerings.values import FLOATS, SHAPES, axes_of, tensors

aten = torch.ops.aten
NUMBERS = (-2.5, -1.0, -0.75, 0.0, 0.25, 1.0, 1.5, 3.0)
MASKED = (*NUMBERS, float("-inf"), 1e4, -1e4)
WITH_DIMENSIONS = tuple(shape for shape in SHAPES if shape)


@case(aten._softmax.default, aten._log_softmax.default, ulps=16, zeros_have_signs=False)
def of_scores(draw, op):
    x = draw(tensors(FLOATS, numbers=MASKED))
    return Call((x, draw(axes_of(x.dim())), False))


@case(aten._safe_softmax.default, ulps=16, zeros_have_signs=False)
def of_scores_that_may_all_be_masked(draw, op):
    x = draw(tensors(FLOATS, numbers=MASKED))
    return Call((x, draw(axes_of(x.dim()))), draw(st.sampled_from([{}, {"dtype": torch.float32}])))


@case(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default, ulps=32, zeros_have_signs=False)
def of_gradients_of_probabilities(draw, op):
    grad = draw(tensors(FLOATS, numbers=NUMBERS))
    scores, dim = draw(tensors(grad.dtype, tuple(grad.shape), NUMBERS)), draw(axes_of(grad.dim()))
    forward = aten._softmax if op is aten._softmax_backward_data.default else aten._log_softmax
    return Call((grad, forward(scores, dim, False), dim, grad.dtype))


def _layer(draw):
    x = draw(tensors((torch.float32, torch.float16, torch.float64), ((3,), (2, 3), (2, 0, 3), (2, 3, 2)), NUMBERS))
    inner = tuple(x.shape[draw(st.integers(0 if x.numel() else 2, x.dim() - 1)) :])
    weight, bias = (draw(st.none() | tensors(x.dtype, inner, NUMBERS)) for _ in range(2))
    return x, inner, weight, bias


@case(aten.native_layer_norm.default, ulps=64, zeros_have_signs=False, in_float32=True)
def of_a_layer(draw, op):
    x, inner, weight, bias = _layer(draw)
    return Call((x, list(inner), weight, bias, draw(st.sampled_from([1e-5, 1e-3, 1e-12]))))


@case(aten.native_layer_norm_backward.default, ulps=256, zeros_have_signs=False)
def of_gradients_of_a_layer(draw, op):
    x, inner, weight, bias = _layer(draw)
    grad = draw(tensors(x.dtype, tuple(x.shape), NUMBERS))
    _, mean, rstd = aten.native_layer_norm(x, list(inner), weight, bias, 1e-2)
    wanted = [True, weight is not None, bias is not None]
    return Call((grad, x, list(inner), mean, rstd, weight, bias, wanted))


def _batch(draw):
    x = draw(tensors((torch.float32, torch.float64), ((2, 3), (4, 2, 2), (2, 1, 3, 2)), NUMBERS))
    channels = (x.shape[1],)
    weight, bias = (draw(st.none() | tensors(x.dtype, channels, NUMBERS)) for _ in range(2))
    mean = draw(tensors(x.dtype, channels, NUMBERS))
    return x, weight, bias, mean, draw(tensors(x.dtype, channels, (0.5, 1.0, 2.0)))


momenta, epsilons = st.sampled_from([0.1, 0.0, 1.0]), st.sampled_from([1e-2, 1e-1])


@case(aten._native_batch_norm_legit_functional.default, ulps=256, zeros_have_signs=False)
def of_a_batch(draw, op):
    return Call((*_batch(draw), draw(st.booleans()), draw(momenta), draw(epsilons)))


@case(aten._native_batch_norm_legit.no_stats, ulps=256, zeros_have_signs=False)
def of_a_batch_without_memory(draw, op):
    return Call((*_batch(draw)[:3], True, draw(momenta), draw(epsilons)))


@case(aten._native_batch_norm_legit_no_training.default, ulps=256, zeros_have_signs=False)
def of_a_batch_after_others(draw, op):
    return Call((*_batch(draw), draw(momenta), draw(epsilons)))
