"""Attention with masks of every shape, in evaluation and in training."""

import math

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import portico.ort
from portico.ort.api import get_compiled_call
from portico.ort.settings import SessionSettings

HEADS = 3


BATCH, QUERIES, KEYS = 2, 5, 7


class Attention(nn.Module):
    def __init__(self, is_causal=False):
        super().__init__()
        torch.manual_seed(0)
        self.projections = nn.ModuleList([nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(6, 12)])
        self.is_causal = is_causal

    def forward(self, query, key, value, mask=None):
        parts = zip(self.projections, (query, key, value), strict=True)
        heads = [projection(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for projection, x in parts]
        out = F.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=self.is_causal)
        return out.transpose(1, 2).flatten(2)


def inputs(batch=BATCH, queries=QUERIES, keys=KEYS):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, rows, 6, generator=generator) for rows in (queries, keys, keys)]


def some(*shape):
    """Return a mask in which the second query sees nothing, and the others all but the last key."""
    mask = torch.zeros(shape)
    mask[..., -1] = -math.inf
    if shape[-2] > 1:
        mask[..., 1, :] = -math.inf
    return mask


def evaluated(net, *given):
    with torch.no_grad():
        return [net(*given)]


def trained(net, *given):
    net.zero_grad()
    out = net(*given)
    out.square().sum().backward()
    return [out.detach(), *(parameter.grad for parameter in net.parameters())]


def operators(folder):
    return {node.op_type for path in folder.glob("*.onnx") for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("run", [evaluated, trained])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        some(QUERIES, KEYS),
        some(BATCH, 1, QUERIES, KEYS),
        some(BATCH, HEADS, QUERIES, KEYS),
        some(1, HEADS, QUERIES, KEYS),
        some(BATCH, 1, 1, KEYS),
        some(BATCH, 1, QUERIES, KEYS) == 0,
        some(1, 1, QUERIES, KEYS).expand(BATCH, 1, QUERIES, KEYS),
    ],
    ids=["none", "rank 2", "a batch", "heads", "heads alone", "keys alone", "boolean", "expanded"],
)
def test_attention_is_that_of_torch(run, mask):
    net = portico.ort.compile(Attention(), strict=True)
    for ours, theirs in zip(run(net, *inputs(), mask), run(Attention(), *inputs(), mask), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("run", [evaluated, trained])
def test_causal_attention_is_that_of_torch(run):
    net, given = portico.ort.compile(Attention(is_causal=True), strict=True), inputs(keys=QUERIES)
    for ours, theirs in zip(run(net, *given), run(Attention(is_causal=True), *given), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mask", [None, some(BATCH, 1, QUERIES, KEYS)], ids=["none", "a batch"])
def test_evaluation_takes_one_operator_for_all_sizes(tmp_path, mask):
    net = portico.ort.compile(Attention(), settings=SessionSettings(cache_dir=tmp_path))
    evaluated(net, *inputs(), mask)
    assert "MultiHeadAttention" in operators(tmp_path)
    assert "Softmax" not in operators(tmp_path)
    given = (*inputs(4, 6, 9), None if mask is None else some(4, 1, 6, 9))
    torch.testing.assert_close(evaluated(net, *given), evaluated(Attention(), *given))
    assert len(get_compiled_call(net).report.graphs) == 1


def test_a_mask_that_is_repeated_along_queries_takes_several_operators(tmp_path):
    net = portico.ort.compile(Attention(), settings=SessionSettings(cache_dir=tmp_path))
    evaluated(net, *inputs(), some(BATCH, 1, 1, KEYS))
    assert "MultiHeadAttention" not in operators(tmp_path)
