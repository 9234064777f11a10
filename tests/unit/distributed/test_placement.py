import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from transformers import TrainingArguments as HuggingFaceArguments

from models import toy_arguments
from portico.distributed.placement import lightning_placement, resolve_strategy
from portico.errors import InputError

ON_THE_CPU = {"accelerator": "cpu", "strategy": "auto", "devices": 1, "num_nodes": 1, "precision": "32-true"}


def test_placement_of_either_arguments_class(tmp_path):
    assert lightning_placement(toy_arguments(tmp_path)) == ON_THE_CPU
    assert lightning_placement(toy_arguments(tmp_path, HuggingFaceArguments)) == ON_THE_CPU


@pytest.mark.parametrize("devices", ["two", "0,x"])
def test_devices_that_are_no_number(devices, tmp_path):
    with pytest.raises(InputError, match=f"`devices='{devices}'` is not a number of devices; use an int"):
        lightning_placement(toy_arguments(tmp_path, devices=devices))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bf16": True}, {"precision": "bf16-mixed"}),
        ({"precision": "64-true", "bf16": True}, {"precision": "64-true"}),
        ({"devices": 2, "strategy": "ddp", "num_nodes": 3}, {"devices": 2, "strategy": "ddp", "num_nodes": 3}),
        ({"use_cpu": False}, {"accelerator": "auto"}),
    ],
)
def test_placement_of_arguments(changes, expected, tmp_path):
    assert lightning_placement(toy_arguments(tmp_path, **changes)) == {**ON_THE_CPU, **expected}


def test_fp16_becomes_16_mixed(tmp_path, monkeypatch):
    args = toy_arguments(tmp_path)
    args.fp16, args.use_cpu = True, False
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert lightning_placement(args)["precision"] == "16-mixed"


def test_fp16_on_cpu_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"`fp16=True` means float16, .* set `bf16=True`"):
        toy_arguments(tmp_path, fp16=True)


def test_devices_from_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert lightning_placement(toy_arguments(tmp_path))["devices"] == 2


def test_strategy_is_resolved_before_a_run(tmp_path):
    strategy = resolve_strategy(toy_arguments(tmp_path))
    assert isinstance(strategy, SingleDeviceStrategy)
    assert strategy.root_device == torch.device("cpu")
    assert isinstance(resolve_strategy(toy_arguments(tmp_path, strategy="ddp", devices=2)), DDPStrategy)


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="has a GPU")
@pytest.mark.parametrize("accelerator", ["gpu", "tpu"])
def test_unavailable_accelerator_is_rejected(tmp_path, accelerator):
    expected = rf"cannot place the run here \(.*\); it got accelerator='{accelerator}'.* for example 'cpu' and 1"
    with pytest.raises(InputError, match=expected):
        resolve_strategy(toy_arguments(tmp_path, accelerator=accelerator))
