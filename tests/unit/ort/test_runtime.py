"""Sessions: devices and dtypes, runs without copies, and the cache."""

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import onnxruntime
import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as state
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._triton import has_triton_package

import portico
import portico.ort
from fresh_process import python
from portico import InputError, ORTTrainingArguments
from portico.ort import SessionSettings, torch_compat
from portico.ort.api import get_compiled_call, running_in_torch
from portico.ort.compiler import backend
from portico.ort.compiler.translation import translate
from portico.ort.runtime import Program, cache_folder, device_of, make_session, providers_for
from releases import since_torch
from unit.ort.families import make_batch, make_model

CUDA = torch.device("cuda", 1)


class OneOutput:
    """As much of a session as a program looks at."""

    _sess = None

    def get_modelmeta(self):
        return type("Metadata", (), {"custom_metadata_map": {"portico": "[[], 1]"}})

    def get_inputs(self):
        return []

    def get_outputs(self):
        return [type("Output", (), {"name": "y"})]


def step(model, batch, dtype=None):
    torch.manual_seed(1)
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = model(**batch)["loss"]
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_agrees_to_its_own_precision(autocast):
    model, batch = make_model("perceptron"), make_batch("perceptron", 3, 7)
    if not autocast:
        model, batch["pixel_values"] = model.half(), batch["pixel_values"].half()
    portico.ort.compile(model)
    dtype = torch.float16 if autocast else None
    with running_in_torch(model):
        expected = step(model, batch, dtype)
    for ours, theirs in zip(step(model, batch, dtype), expected, strict=True):
        assert (ours - theirs).abs().max() <= 3e-3 * theirs.abs().max()


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float64, "float64")])
def test_a_dtype_without_kernels_is_refused(dtype, name):
    model, batch = portico.ort.compile(make_model("perceptron").to(dtype)), make_batch("perceptron", 3, 7)
    batch["pixel_values"] = batch["pixel_values"].to(dtype)
    with pytest.raises(InputError, match=rf"has no kernel for \w+ in {name} on cpu; let the model compute in float32"):
        model(**batch)


def test_a_cuda_device_has_its_own_provider(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    stream = type("Stream", (), {"cuda_stream": 77})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    (name, options), last = providers_for(CUDA)
    assert (name, last) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options == {"device_id": "1", "user_compute_stream": "77"}


def test_a_device_without_a_provider_is_refused(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(InputError, match=r"The model is on cuda:1, but .* with CPUExecutionProvider only; install"):
        providers_for(CUDA)


def test_outputs_lie_where_the_inputs_do():
    (place,) = Program(OneOutput(), CUDA)._devices
    assert (place.device_type(), place.device_id()) == (state.OrtDevice.cuda(), 1)
    (place,) = Program(OneOutput())._devices
    assert place.device_type() == state.OrtDevice.cpu()
    assert device_of([3, torch.ones(2), torch.ones(1, device="meta")]) == torch.device("meta")
    assert device_of([3, torch.ones(2)]) == torch.device("cpu")


class Recording:
    """A session that remembers where the tensors of a run lie."""

    def __init__(self, session):
        self.session = session

    def run_with_ortvaluevector(self, options, input_names, feeds, output_names, fetches, devices):
        self.session.run_with_ortvaluevector(options, input_names, feeds, output_names, fetches, devices)
        self.pointers = [[vector[index].data_ptr() for index in range(len(vector))] for vector in (feeds, fetches)]


def make_program(function, *inputs):
    module = make_fx(function, tracing_mode="fake")(*inputs)
    program = Program(make_session(translate(module), SessionSettings(num_threads=1)))
    program._session = Recording(program._session)
    return program


def test_nothing_is_copied_on_the_way_in_or_out():
    floats, kept = torch.randn(4, 5), torch.rand(4, 5) > 0.5
    program = make_program(lambda x, mask: (torch.where(mask, x, 0.0) + 1, ~mask), floats, kept)
    outputs = program(floats, kept)
    assert program._session.pointers == [
        [floats.data_ptr(), kept.data_ptr()],
        [output.data_ptr() for output in outputs],
    ]
    assert torch.equal(outputs[0], torch.where(kept, floats, 0.0) + 1)
    assert torch.equal(outputs[1], ~kept)


def test_outputs_outlive_the_next_run():
    x = torch.randn(3)
    program = make_program(lambda x: x * 2, x)
    first = program(x)
    expected = first.clone()
    program(x + 1)
    assert torch.equal(first, expected)


SCRIPT = """
import json, sys
import torch
import portico.ort
from portico.ort.api import get_compiled_call

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.GELU())
net.append(torch.nn.Linear(8, int(sys.argv[1])))
portico.ort.compile(net)
losses = []
for rows in (3, 5):
    loss = net(torch.randn(rows, 4)).square().sum()
    loss.backward()
    losses.append(loss.item())
report = get_compiled_call(net).report.as_dict()
num_traced = sum(graph["is_traced"] for graph in report["graphs"])
num_sessions = sum(graph["num_sessions"] for graph in report["graphs"])
print(json.dumps([losses, num_sessions, report["num_built"], num_traced, "torch._inductor.scheduler" in sys.modules]))
"""


def in_fresh_process(folder, width=2):
    """Train in a process of its own; return the losses, the number of sessions, of those built and of traces.

    And whether the code generator of inductor, which takes long to import, was imported.
    """
    environment = {**os.environ, "PORTICO_ORT_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:portico", "-c", SCRIPT, str(width)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def compiled(folder, **options):
    torch.manual_seed(0)
    return portico.ort.compile(nn.Linear(4, 2), settings=SessionSettings(cache_dir=str(folder), **options))


def num_built(net):
    net(torch.ones(3, 4)).sum().backward()
    return get_compiled_call(net).report.as_dict()["num_built"]


@since_torch("2.13")
def test_a_second_start_of_the_same_run_builds_nothing(tmp_path):
    forked = python("-c", SCRIPT, 2, folder=tmp_path, PORTICO_ORT_CACHE_DIR=str(tmp_path))
    assert forked.returncode == 0, forked.stderr
    first = json.loads(forked.stdout.splitlines()[-1])
    second = in_fresh_process(tmp_path)  # with other hashes of strings than the first
    assert first[1] == first[2] > 0
    assert first[3] == 2
    # Where Triton is installed, which CUDA builds of torch require, torch's cache imports inductor by itself.
    assert second == [first[0], first[1], 0, 0, has_triton_package()]


@pytest.mark.slow
def test_two_processes_may_start_at_once(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: in_fresh_process(tmp_path), range(2)))
    assert found[0][0] == found[1][0]
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".onnx"}, "nothing half written is left"
    assert in_fresh_process(tmp_path)[2] == 0
    assert in_fresh_process(tmp_path, width=3)[2] > 0, "another graph"


def test_another_graph_or_option_is_built(tmp_path):
    assert num_built(compiled(tmp_path)) == 2
    assert num_built(compiled(tmp_path)) == 0
    assert num_built(compiled(tmp_path, log_level=2, num_threads=2)) == 0, "these change nothing in a graph"
    assert num_built(compiled(tmp_path, entries={"session.set_denormal_as_zero": "1"})) == 2


def traced(net):
    """Return the gradients of a step, and for each graph whether it was traced."""
    torch.manual_seed(1)
    (net(torch.ones(3, 4)) ** 2).sum().backward()
    return net.weight.grad, [graph.is_traced for graph in get_compiled_call(net).report.graphs]


@since_torch("2.13")
def test_a_trace_is_read_from_the_cache(tmp_path):
    first, was_traced = traced(compiled(tmp_path))
    second, is_traced = traced(compiled(tmp_path))
    assert (was_traced, is_traced) == ([True, True], [False, False])
    assert torch.equal(first, second)
    # A session that is gone is built again, from a new trace, be it that of the forward or of the backward.
    sessions = list(tmp_path.glob("*.onnx"))
    assert len(sessions) == 2
    for path in sessions:
        path.unlink()
        third, is_traced = traced(compiled(tmp_path))
        assert is_traced == [True, True]
        assert torch.equal(first, third)


@since_torch("2.13")
def test_decompositions_are_not_searched_for_at_a_cached_start(tmp_path, monkeypatch):
    found = []

    def compiles(*args, **options):
        result = torch_compat.aot_module_simplified(*args, **options)
        found.append("_table" in vars(options["decompositions"]))
        return result

    monkeypatch.setattr(backend, "aot_module_simplified", compiles)
    for _ in range(2):
        net = compiled(tmp_path)
        traced(net)
        with torch.no_grad():
            net(torch.ones(3, 4))
    assert found == [True, True, False, False], "two starts, each with a training and an evaluation"


@since_torch("2.13")
def test_a_trace_of_an_evaluation_is_read_from_the_cache(tmp_path):
    found = []
    for _ in range(2):
        net = compiled(tmp_path)
        with torch.no_grad():
            found.append((net(torch.ones(3, 4)), get_compiled_call(net).report.graphs[0].is_traced))
    (first, was_traced), (second, is_traced) = found
    assert (was_traced, is_traced) == (True, False)
    assert torch.equal(first, second)


@since_torch("2.13")
def test_a_broken_trace_is_made_again(tmp_path):
    first, _ = traced(compiled(tmp_path))
    for path in (tmp_path / "aotautograd").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:100])
    second, is_traced = traced(compiled(tmp_path))
    assert is_traced == [True, True]
    assert torch.equal(first, second)
    assert traced(compiled(tmp_path))[1] == [False, False]


@since_torch("2.13")
def test_nothing_is_cached_where_the_cache_is_off(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        assert traced(compiled("off"))[1] == [True, True]
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert not list(tmp_path.iterdir())


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.linear = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.linear(torch.nn.functional.gelu(self.embedding(ids)))


@pytest.fixture(params=["off", "folder", "no home", "older torch"])
def cache_setting(request, tmp_path, monkeypatch):
    """A value of `cache_dir`, with what it depends on."""
    monkeypatch.delenv("PORTICO_ORT_CACHE_DIR", raising=False)
    if request.param == "no home":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        return None
    if request.param == "older torch":
        monkeypatch.setattr(torch_compat, "CACHES_TRACES", False)
    return "off" if request.param == "off" else str(tmp_path)


def test_each_setting_of_the_cache_trains_on_a_batch_of_one_row(cache_setting):
    """torch builds a backward without symbolic sizes at the first backward pass, if at all."""
    torch.manual_seed(0)
    net = portico.ort.compile(nn.Linear(4, 2), settings=SessionSettings(cache_dir=cache_setting))
    for rows in (1, 3):
        net.zero_grad()
        net(torch.ones(rows, 4)).sum().backward()
        assert net.weight.grad.tolist() == [[rows] * 4] * 2
    report = get_compiled_call(net).report
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("first", [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_each_setting_of_the_cache_serves_batches_of_any_size(first, cache_setting):
    net, plain = portico.ort.compile(Tagger(), settings=SessionSettings(cache_dir=cache_setting)), Tagger()
    for shape in (first, (2, 3), (3, 2), (1, 2), (3, 1), (1, 1)):
        ids = torch.randint(9, shape)
        for model in (net, plain):
            model.zero_grad()
            loss = (model(ids) ** 2).sum()
            loss.backward(retain_graph=True)
            loss.backward()
        for (name, parameter), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, atol=2e-6, rtol=2e-6, msg=f"{shape} {name}")
        with torch.no_grad():
            torch.testing.assert_close(net(ids), plain(ids), atol=2e-6, rtol=2e-6)


@since_torch("2.13")
def test_zeros_as_large_as_an_embedding_are_made_when_they_are_used(tmp_path):
    settings = SessionSettings(cache_dir=str(tmp_path))
    net = portico.ort.compile(nn.Embedding(50_000, 4), settings=settings)
    net(torch.ones(3, dtype=torch.long)).sum().backward()
    assert net.weight.grad[1].tolist() == [3, 3, 3, 3]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000


@pytest.mark.parametrize("content", [b"", b"no model", "half"])
def test_a_broken_file_is_announced_and_built_again(content, tmp_path, caplog):
    num_built(compiled(tmp_path))
    for path in tmp_path.glob("*.onnx"):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with caplog.at_level(logging.WARNING, "portico"):
        assert num_built(compiled(tmp_path)) == 2
    assert "in the cache of ONNX Runtime's graphs is broken and is built again" in caplog.text
    assert num_built(compiled(tmp_path)) == 0


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    wrong = tmp_path / "file" / "folder"
    with pytest.raises(InputError, match=r"`onnx_cache_dir='.*folder'` cannot be written \(Not a directory\); give"):
        compiled(wrong)
    monkeypatch.setenv("PORTICO_ORT_CACHE_DIR", str(wrong))
    with pytest.raises(InputError, match=r"`PORTICO_ORT_CACHE_DIR='.*folder'` cannot be written"):
        portico.ort.compile(nn.Linear(4, 2))


def test_a_read_only_folder_is_refused(tmp_path, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(InputError, match=r"cannot be written \(Permission denied\); give a folder that can, or"):
        cache_folder(tmp_path)


def test_nobody_has_to_have_a_home(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("PORTICO_ORT_CACHE_DIR")
    assert cache_folder(None) is None
    assert "cannot be written, so ONNX Runtime's graphs are rebuilt at each start" in caplog.text


def test_a_disk_that_fills_up_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    net = compiled(tmp_path)

    def refuse(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("portico.ort.runtime.replaced", refuse)
    assert num_built(net) == 2
    assert "cannot be written ([Errno 28] No space left on device); continuing without" in caplog.text


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PORTICO_ORT_CACHE_DIR")
    assert cache_folder(None) == tmp_path / "home" / "portico" / "onnxruntime"
    monkeypatch.setenv("PORTICO_ORT_CACHE_DIR", str(tmp_path / "environment"))
    assert cache_folder(None) == tmp_path / "environment"
    assert cache_folder(tmp_path / "chosen") == tmp_path / "chosen"
    monkeypatch.chdir(tmp_path)
    assert cache_folder("off") is cache_folder("OFF") is cache_folder("Off") is None
    assert not {path.name.lower() for path in tmp_path.iterdir()} & {"off"}
    args = ORTTrainingArguments(output_dir=str(tmp_path), onnx_cache_dir="somewhere", onnx_profile=True)
    assert args.session_settings.cache_dir == "somewhere"
    assert args.session_settings.profile
    assert not ORTTrainingArguments(output_dir=str(tmp_path)).session_settings.profile
