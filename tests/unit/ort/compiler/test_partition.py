"""Which operators run in ONNX Runtime, and the stages of a long graph."""

import operator

import pytest
import torch
from torch import fx, nn
from torch.fx.passes.infra.partitioner import Partition

import portico.ort
from portico import InputError
from portico.ort.api import get_compiled_call, running_in_torch
from portico.ort.compiler.partition import cut_into_stages
from releases import since_torch

aten = torch.ops.aten


def chain(*widths):
    """Return the nodes of a graph in which each reads the one before, with results as wide as given."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    nodes = []
    for width in widths:
        node = graph.call_function(aten.relu.default, (node,))
        node.meta["val"] = torch.empty(width, device="meta")
        nodes.append(node)
    graph.output(node)
    return nodes


def parts_of(nodes):
    return [list(part.nodes) for part in cut_into_stages(Partition(0, nodes))]


def test_a_short_graph_is_one_stage():
    nodes = chain(*[1] * 150)
    assert parts_of(nodes) == [nodes]


def test_a_stage_ends_where_the_least_is_handed_on():
    widths = [100] * 300
    widths[99] = widths[199] = 1
    nodes = chain(*widths)
    assert parts_of(nodes) == [nodes[:100], nodes[100:200], nodes[200:]]


def test_stages_are_in_the_order_of_the_graph():
    nodes = chain(*[1] * 400)
    assert [node for part in parts_of(nodes[::-1]) for node in part] == nodes


def test_results_stay_with_what_they_are_results_of():
    graph = fx.Graph()
    first = graph.placeholder("x")
    both = graph.call_function(aten.aminmax.default, (first,))
    both.meta["val"] = (torch.empty(1, device="meta"), torch.empty(1, device="meta"))
    between = first
    for _ in range(200):
        between = graph.call_function(aten.relu.default, (between,))
        between.meta["val"] = torch.empty(1000, device="meta")
    lowest = graph.call_function(operator.getitem, (both, 0))
    lowest.meta["val"] = torch.empty(1, device="meta")
    graph.output((lowest, between))
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    for given in (nodes, nodes[::-1]):
        assert parts_of(given)[0][:2] == [both, lowest]


class Masked(nn.Module):
    """Computes a mask in bytes, of which ONNX has no sign."""

    def forward(self, x):
        return x * aten_of_bytes(x > 0)


def aten_of_bytes(mask):
    return -(mask.to(torch.uint8) * 3)


def test_what_has_no_kernels_for_bytes_runs_in_torch(caplog):
    model, x = portico.ort.compile(Masked()), torch.randn(3, 4)
    with running_in_torch(model):
        expected = model(x)
    assert torch.equal(model(x), expected)
    assert "aten.neg.default has no lowering to ONNX for these tensors; it runs in torch." in caplog.text
    assert "aten.gt.Scalar" not in get_compiled_call(model).report.fallbacks
    assert "aten.neg.default (no lowering to ONNX for these tensors)" in str(get_compiled_call(model).report)


def test_strict_names_what_has_no_kernels():
    with pytest.raises(InputError, match=r"`strict=True`, but the model uses aten\.\w+\.\w+.* for these tensors"):
        portico.ort.compile(Masked(), strict=True)(torch.randn(3, 4))


@since_torch("2.13")
def test_gradients_of_convolutions_and_batch_norms_run_in_torch_which_is_faster(caplog):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    # A single ReLU is not worth a session, but a product is.
    model.append(nn.Linear(12, 1))
    portico.ort.compile(model, strict=True)(torch.randn(2, 2, 6, 6)).sum().backward()
    fallbacks = get_compiled_call(model).report.fallbacks
    assert {fallback.num_calls for fallback in fallbacks.values()} == {1}
    assert {name.split(".")[1]: fallback.reason for name, fallback in fallbacks.items()} == {
        "_native_batch_norm_legit_functional": "faster there",
        "convolution": "faster there",
        "convolution_backward": "faster there",
        "max_pool2d_with_indices": "faster there",
        "max_pool2d_with_indices_backward": "faster there",
        "native_batch_norm_backward": "faster there",
        "relu": "too little between operators that are faster there",
        "threshold_backward": "faster there",
    }
    assert "has no lowering" not in caplog.text


def test_a_gelu_between_convolutions_runs_in_onnxruntime():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.GELU(), nn.Conv1d(3, 2, 3))
    x = torch.randn(2, 2, 9)
    expected = torch.autograd.grad(model(x).square().sum(), tuple(model.parameters()))
    compiled = portico.ort.compile(model, strict=True)
    found = torch.autograd.grad(compiled(x).square().sum(), tuple(model.parameters()))
    torch.testing.assert_close(found, expected)
    assert get_compiled_call(compiled).report.fallbacks.keys() == {
        "aten.convolution.default",
        "aten.convolution_backward.default",
    }
    assert "In torch: aten.convolution.default (faster there), 2 nodes" in str(get_compiled_call(compiled).report)
