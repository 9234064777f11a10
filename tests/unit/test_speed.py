import logging

import pytest
import torch

from models import Line, Points
from portico import IPUTrainingArguments, ORTTrainingArguments, Trainer, TrainingArguments, compose
from portico.arguments import fastest_arguments

NEUTRAL = {
    "tf32": None,
    "torch_compile": False,
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
}


@pytest.fixture(params=["amx_bf16", "avx512_bf16", None])
def multiplies_in_bfloat16(request, monkeypatch):
    names = ("amx_bf16", "avx512_bf16", "avx512_f")
    monkeypatch.setattr(
        torch.cpu,
        "get_capabilities",
        lambda: {name: name in (request.param, "avx512_f") for name in names},
        raising=False,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return request.param is not None


@pytest.fixture
def on_a_gpu(monkeypatch):
    for name, value in {
        "is_available": True,
        "device_count": 2,
        "get_device_capability": (9, 0),
        "is_bf16_supported": True,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)


def test_mixed_precision_on_a_cpu_needs_instructions_for_it(multiplies_in_bfloat16):
    assert fastest_arguments() == {"bf16": multiplies_in_bfloat16, "use_cpu": multiplies_in_bfloat16, **NEUTRAL}


def test_a_gpu_compiles_and_shares_the_cores_among_loaders(on_a_gpu):
    assert fastest_arguments() == {
        "use_cpu": False,
        "bf16": True,
        "tf32": True,
        "torch_compile": True,
        "dataloader_num_workers": 6,
        "dataloader_persistent_workers": True,
    }


def test_an_accelerator_is_left_alone_if_the_cpu_was_chosen(on_a_gpu, monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert fastest_arguments(use_cpu=True) == {"bf16": False, "use_cpu": True, **NEUTRAL}


def test_own_settings_win_and_other_numbers_are_announced(multiplies_in_bfloat16, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        args = TrainingArguments.fast(str(tmp_path), dataloader_num_workers=1)
    assert (args.output_dir, args.bf16, args.dataloader_num_workers) == (str(tmp_path), multiplies_in_bfloat16, 1)
    assert ("`fast()` set bf16=True" in caplog.text) == multiplies_in_bfloat16
    assert not TrainingArguments.fast(str(tmp_path), bf16=False).bf16
    assert not TrainingArguments.fast(str(tmp_path), precision="32-true").bf16


@pytest.mark.parametrize("arguments", [IPUTrainingArguments, ORTTrainingArguments])
def test_a_backend_chooses_its_precision_itself(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert not arguments.fast(str(tmp_path)).bf16


def test_a_run_with_them_trains_in_mixed_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    args = TrainingArguments.fast(str(tmp_path), max_steps=2, use_cpu=True, report_to="none")
    trainer = Trainer(model=Line(), args=args, train_dataset=Points(16))
    seen = []
    trainer.model.linear.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    trainer.train()
    assert seen == [True, True]


def test_the_command_line_has_them_in_one_word(multiplies_in_bfloat16):
    args = compose(["+speed=max", "model.name_or_path=roberta-base"], experiment="text_classification")["args"]
    expected = {"bf16": multiplies_in_bfloat16, "use_cpu": multiplies_in_bfloat16, **NEUTRAL}
    assert {name: args[name] for name in expected} == expected
    assert compose(["+speed=max", "args.use_cpu=true"], experiment="text_classification")["args"]["use_cpu"]
    refused = ["+speed=max", "model.name_or_path=roberta-base", "args.bf16=false"]
    assert not compose(refused, experiment="text_classification")["args"]["bf16"]


@pytest.mark.parametrize("name_or_path", [None, "roberta-base"])
def test_a_small_model_made_from_scratch_stays_in_32_bits_on_a_cpu(name_or_path, multiplies_in_bfloat16):
    args = compose(["+speed=max", f"model.name_or_path={name_or_path or 'null'}"], experiment="mrc")["args"]
    assert args["bf16"] == (multiplies_in_bfloat16 and name_or_path is not None)
