"""``portico.ort.compile``: what the compiled model computes, errors, and the report."""

import copy
import importlib
import json
import os
import pickle
from functools import cache

import onnx
import pytest
import torch
from torch import nn

import portico.ort
from portico import InputError
from portico.errors import InputTypeError
from portico.ort import api, runtime
from portico.ort.api import get_compiled_call, restore, running_in_torch
from portico.ort.torch_compat import dynamo_errors
from releases import since_torch


def make_net(width=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 2))


class Accumulating(nn.Module):
    """Holds an operator that has no lowering."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.logcumsumexp(self.linear(x), 1) * 2


class Heads(nn.Module):
    """Returns, for its backward, a view that torch can make because it keeps the strides of what was transposed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        rows, length, width = x.shape
        heads = self.first(x).view(rows, length, 2, 2).transpose(1, 2).sigmoid()
        return self.last(heads.transpose(1, 2).reshape(rows, length, width))


class Overwriting(nn.Module):
    """Changes its input, which a linear layer reads and which is returned to its owner."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        x.mul_(2)
        x[:, 0] = 1
        return self.linear(x)


class Printing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        if self.linear(x).sum().item() > 1000:
            return x
        return self.linear(x)


def test_a_batch_as_large_as_a_layer_is_wide_keeps_its_size_a_symbol():
    net = portico.ort.compile(make_net(width=4))
    for rows in (4, 3, 8):
        net(torch.randn(rows, 4)).sum().backward()
    assert [graph.kind for graph in get_compiled_call(net).report.graphs] == ["forward", "backward"]


class SquaredError(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 1)

    def forward(self, x, labels):
        return nn.functional.mse_loss(self.linear(x), labels)


def test_a_mean_over_a_number_of_rows_that_torch_does_not_know():
    net, in_torch = portico.ort.compile(SquaredError(), strict=True), SquaredError()
    for rows in (4, 6):
        losses = [model(torch.ones(rows, 3), torch.zeros(rows, 1)) for model in (net, in_torch)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
    torch.testing.assert_close(net.linear.weight.grad, in_torch.linear.weight.grad)


def test_a_view_of_what_lies_otherwise_in_onnxruntime():
    net, x = portico.ort.compile(Heads()), torch.randn(3, 5, 4)
    gradients = []
    for _ in range(2):
        net.zero_grad()
        net(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
        restore(net)
    torch.testing.assert_close(*gradients)


def test_an_input_that_the_model_overwrites_is_overwritten():
    net, x = portico.ort.compile(Overwriting()), torch.randn(3, 4)
    found, expected = x.clone(), x.clone()
    torch.testing.assert_close(net(found), Overwriting()(expected))
    torch.testing.assert_close(found, expected)


def test_a_graph_may_be_gone_through_backward_twice():
    gradients = []
    for net in (portico.ort.compile(make_net()), make_net()):
        y = net(torch.ones(3, 4))
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(*gradients)


def test_evaluation_has_a_graph_of_its_own_that_sees_new_weights():
    net, x = portico.ort.compile(make_net()), torch.randn(3, 4)
    for _ in range(2):
        with torch.no_grad():
            found = net(x)
            with running_in_torch(net):
                torch.testing.assert_close(found, net(x))
            net[0].weight.mul_(2)
    assert [graph.kind for graph in get_compiled_call(net).report.graphs] == ["inference"]


def test_a_restored_model_runs_in_torch_and_keeps_its_graphs():
    net, x = portico.ort.compile(make_net()), torch.randn(3, 4)
    net(x)
    call = get_compiled_call(net)
    restore(net)
    assert torch.equal(net(x), make_net()(x))
    assert get_compiled_call(portico.ort.compile(net)) is call
    assert get_compiled_call(portico.ort.compile(net, strict=True)) is not call, "other options, other graphs"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_is_a_plain_model(copied):
    net = portico.ort.compile(make_net())
    assert get_compiled_call(copied(net)) is None
    assert net.state_dict().keys() == make_net().state_dict().keys()


@since_torch("2.13")
def test_an_operator_without_a_lowering_runs_in_torch_and_is_named(caplog):
    model, x = portico.ort.compile(Accumulating()), torch.randn(3, 4)
    with running_in_torch(model):
        expected = model(x)
    torch.testing.assert_close(model(x), expected)
    assert "aten.logcumsumexp.default has no lowering to ONNX" in caplog.text
    fallback = get_compiled_call(model).report.fallbacks["aten.logcumsumexp.default"]
    assert fallback.num_nodes >= 1
    assert fallback.num_calls == 1
    assert fallback.seconds > 0


def test_strict_refuses_an_operator_without_a_lowering():
    with pytest.raises(InputError, match=r"`strict=True`, but the model uses aten.logcumsumexp.default"):
        portico.ort.compile(Accumulating(), strict=True)(torch.randn(3, 4))


def test_strict_refuses_a_model_that_cannot_be_traced_and_shows_the_line():
    with pytest.raises(InputError, match=r"cannot trace the model in one piece(.|\n)*sum\(\).item\(\)"):
        portico.ort.compile(Printing(), strict=True)(torch.randn(3, 4))


def test_the_report_names_the_cause_of_a_graph_break():
    model = portico.ort.compile(Printing())
    model(torch.randn(3, 4))
    report = get_compiled_call(model).report
    assert any("item" in cause for cause in report.graph_breaks)
    assert "Graph break, " in str(report)


def test_the_report_of_one_model_does_not_count_the_graph_breaks_of_another():
    whole, cut = portico.ort.compile(make_net()), portico.ort.compile(Printing())
    for model in (whole, cut, whole):
        model(torch.randn(3, 4))
    assert get_compiled_call(cut).report.graph_breaks
    assert not get_compiled_call(whole).report.graph_breaks


class Counting(nn.Module):
    """Is another model at each call, as torch sees it."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


def test_strict_refuses_a_model_that_is_traced_again_and_again(monkeypatch):
    monkeypatch.setattr(api, "_MOST_GRAPHS", 2)
    model, x = portico.ort.compile(Counting(), strict=True), torch.randn(3, 4)
    model(x), model(x)
    with pytest.raises(InputError, match=r"`strict=True`, but the model was traced 2 times, .*; make it a tensor, or"):
        model(x)


def test_the_report_can_be_saved_as_json():
    net = portico.ort.compile(make_net())
    with torch.no_grad():
        net(torch.randn(3, 4))
    report = get_compiled_call(net).report
    saved = json.loads(json.dumps(report.as_dict()))
    assert [graph["kind"] for graph in saved["graphs"]] == ["inference"]
    assert "1 inference" in str(report)
    assert report.as_dict()["peak_memory_bytes"] > 2**20


def test_a_profile_says_where_the_time_goes(tmp_path):
    net = portico.ort.compile(make_net(), settings=portico.ort.SessionSettings(profile=True))
    net(torch.randn(3, 4)).sum().backward()
    report = get_compiled_call(net).report
    seconds = report.operator_seconds
    assert {"Gemm", "FusedGemm"} & set(seconds), seconds
    assert list(seconds.values()) == sorted(seconds.values(), reverse=True)
    net(torch.randn(3, 4))
    assert report.as_dict()["operator_seconds"] == seconds, "a profile that was read has ended"
    assert "% in ReduceSum" in str(report)


def test_a_profile_is_written_where_nobody_else_can_lay_a_link(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(runtime, "_make_profile_folder", cache(runtime._make_profile_folder.__wrapped__))
    net = portico.ort.compile(make_net(), settings=portico.ort.SessionSettings(profile=True))
    net(torch.randn(3, 4))
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert any(folder.iterdir()), "the profile is being written"
    assert get_compiled_call(net).report.operator_seconds
    assert list(folder.iterdir()) == []
    runtime._make_profile_folder(os.getpid()).cleanup()
    assert list(tmp_path.iterdir()) == [], "the folder that is removed when the process ends"


def test_what_nobody_reads_is_not_computed(tmp_path):
    net = portico.ort.compile(nn.LayerNorm(4), settings=portico.ort.SessionSettings(cache_dir=str(tmp_path)))
    with torch.no_grad():
        net(torch.randn(3, 4))
    (path,) = tmp_path.glob("*.onnx")
    (node,) = onnx.load(path).graph.node
    assert (node.op_type, len(node.output)) == ("LayerNormalization", 1)


def test_torch_knows_the_backend_by_name():
    importlib.import_module("portico.ort.compiler.backend")
    net, x = make_net(), torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(net, backend="portico_ort", dynamic=True)(x), net(x))


def test_only_modules_are_compiled():
    with pytest.raises(InputTypeError, match=r"`model` is a str; give a `torch.nn.Module`"):
        portico.ort.compile("bert")


class Tagger(nn.Module):
    def __init__(self, layer=nn.LSTM):
        super().__init__()
        self.inner = nn.ModuleDict({"rnn": layer(4, 4, batch_first=True)})
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.inner["rnn"](x)[0])


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_announced_once(layer, caplog):
    model = portico.ort.compile(Tagger(layer))
    for _ in range(2):
        portico.ort.compile(model)(torch.randn(2, 3, 4)).sum().backward()
    (message,) = [record.getMessage() for record in caplog.records if "torch does not trace" in record.getMessage()]
    assert f"torch does not trace `inner.rnn` ({layer.__name__}): the `forward` that calls it runs in torch" in message
    assert "set `torch._dynamo.config.allow_rnn = True`" in message


def test_recurrent_layers_run_in_onnxruntime_if_torch_is_told_to_trace_them(caplog):
    with torch._dynamo.config.patch(allow_rnn=True):
        model, x = portico.ort.compile(Tagger(nn.GRU), strict=True), torch.randn(2, 3, 4)
        found = model(x)
    assert "torch does not trace" not in caplog.text
    assert [graph.kind for graph in get_compiled_call(model).report.graphs] == ["forward", "backward"]
    with running_in_torch(model):
        torch.testing.assert_close(found, model(x))


def test_images_of_one_size_get_constant_sizes_and_those_of_others_get_symbols():
    model = portico.ort.compile(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(2)))
    graphs = get_compiled_call(model).report.graphs
    for rows, side, num_graphs in ((2, 5, 1), (3, 5, 1), (2, 6, 2), (4, 7, 2), (3, 5, 2)):
        images = torch.randn(rows, 1, side, side)
        with torch.no_grad(), running_in_torch(model):
            expected = model(images)
        with torch.no_grad():
            torch.testing.assert_close(model(images), expected)
        assert len(graphs) == num_graphs, side


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_at_which_the_tracer_fails_runs_in_torch(strict, monkeypatch, caplog):
    model, x = portico.ort.compile(nn.Dropout(0.5), strict=strict), torch.ones(4, 8)

    def fail(*inputs):
        torch.rand(1)
        raise dynamo_errors.InternalTorchDynamoError("SymNodeVariable() is not a constant")

    monkeypatch.setattr(get_compiled_call(model), "_compiled", fail)
    if strict:
        with pytest.raises(InputError, match="`strict=True`, but torch's tracer fails at this model: SymNode"):
            model(x)
        return
    torch.manual_seed(0)
    found = model(x)
    torch.manual_seed(0)
    assert torch.equal(found, nn.functional.dropout(x, 0.5))
    assert "tracer fails at this model, which runs in torch from here on: SymNode" in caplog.text
    model(x)
    assert len(caplog.records) == 1
