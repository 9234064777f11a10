"""What ONNX Runtime computes in and where; what it cannot is said before the first step."""

import onnxruntime
import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as state

import portico
import portico.ort
from portico import InputError
from portico.ort.api import running_in_torch
from portico.ort.runtime import Binding, device_of, providers_for
from unit.ort.families import make_batch, make_model

CUDA = torch.device("cuda", 1)


class OneOutput:
    """As much of a session as a binding looks at."""

    _sess = None

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
    (place,) = Binding(OneOutput(), CUDA)._devices
    assert (place.device_type(), place.device_id()) == (state.OrtDevice.cuda(), 1)
    (place,) = Binding(OneOutput())._devices
    assert place.device_type() == state.OrtDevice.cpu()
    assert device_of([3, torch.ones(2), torch.ones(1, device="meta")]) == torch.device("meta")
    assert device_of([3, torch.ones(2)]) == torch.device("cpu")


def test_the_strategy_places_the_model_on_the_device_of_the_accelerator():
    strategy = portico.ORTStrategy()
    strategy.parallel_devices = [CUDA]
    assert strategy.root_device == CUDA
