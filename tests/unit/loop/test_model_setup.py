import logging

import pytest
import torch
import transformers

import portico
from models import Line, ToyDataset, tiny_bert, toy_trainer

LOGGER = logging.getLogger("portico")


@pytest.fixture(autouse=True)
def levels():
    before = LOGGER.level, transformers.logging.get_verbosity()
    yield
    LOGGER.setLevel(before[0])
    transformers.logging.set_verbosity(before[1])


@pytest.mark.parametrize(("name", "level"), [("error", logging.ERROR), ("info", logging.INFO)])
def test_log_level_applies_to_both_libraries(name, level, tmp_path):
    toy_trainer(tmp_path, log_level=name)
    assert LOGGER.level == transformers.logging.get_verbosity() == level


def test_passive_log_level_keeps_levels(tmp_path):
    LOGGER.setLevel(logging.DEBUG)
    transformers.logging.set_verbosity_error()
    toy_trainer(tmp_path)
    assert LOGGER.level == logging.DEBUG
    assert transformers.logging.get_verbosity() == logging.ERROR


def bert_trainer(folder, trainer_class=None, **changes):
    parts = {"model": tiny_bert(), "train_dataset": ToyDataset(8), "eval_dataset": ToyDataset(4)}
    return toy_trainer(folder, trainer_class, parts=parts, max_steps=1, **changes)


def test_neftune_hook_is_removed_when_training_fails(tmp_path):
    class Fails(portico.Trainer):
        def compute_loss(self, *args, **kwargs):
            assert self.model.get_input_embeddings()._forward_hooks
            raise KeyError("mine")

    trainer = bert_trainer(tmp_path, Fails, neftune_noise_alpha=5.0)
    with pytest.raises(KeyError):
        trainer.train()
    assert not trainer.model.get_input_embeddings()._forward_hooks


def test_underflow_overflow_debug_reports_overflow(tmp_path, capsys):
    trainer = bert_trainer(tmp_path, debug="underflow_overflow")
    torch.nn.init.constant_(trainer.model.classifier.weight, float("inf"))
    with pytest.raises(ValueError, match="inf/nan detected"):
        trainer.train()
    assert "Detected inf/nan" in capsys.readouterr().out


def test_empty_cache_steps(tmp_path, monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: emptied.append(True))
    # In a CUDA build of torch, Adam would ask the stand-in whether a graph is captured.
    trainer = toy_trainer(tmp_path, torch_empty_cache_steps=3, num_train_epochs=1, optim="sgd")
    trainer.train()
    assert len(emptied) == 2


def test_liger_kernels_are_applied(tmp_path, monkeypatch):
    applied = []
    monkeypatch.setattr("portico.compat.transformers.apply_liger_kernel", lambda *given: applied.append(given))
    monkeypatch.setattr("portico.loop.validation.check_kernels", lambda args: None)
    trainer = bert_trainer(tmp_path, use_liger_kernel=True, liger_kernel_config={"rope": True})
    trainer.train()
    assert applied == [(trainer.model, {"rope": True})]


def test_liger_needs_its_package(tmp_path, monkeypatch):
    monkeypatch.setattr("portico.loop.validation.is_liger_kernel_available", lambda: False)
    trainer = bert_trainer(tmp_path, use_liger_kernel=True)
    trainer.evaluate()  # which applies no kernels, under transformers either
    with pytest.raises(ImportError, match="pip install liger-kernel"):
        trainer.train()


def test_liger_kernels_on_the_cpu(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("portico.loop.validation.is_liger_kernel_available", lambda: True)
    monkeypatch.setattr("portico.compat.transformers.apply_liger_kernel", lambda *given: None)
    bert_trainer(tmp_path, use_liger_kernel=True).train()
    assert "liger-kernel has no kernels for the CPU" in caplog.text


@pytest.mark.parametrize("backend", ["EAGER", "no"])
def test_compiler_names_as_accelerate_reads_them(tmp_path, backend):
    trainer = bert_trainer(tmp_path, torch_compile=True, torch_compile_backend=backend)
    trainer.train()
    assert hasattr(trainer.model_wrapped, "_orig_mod") is (backend != "no")


def test_unknown_compile_backend_is_rejected(tmp_path):
    with pytest.raises(portico.InputError, match=r"Unknown compiler `torch_compile_backend='nvcc'`.*inductor"):
        bert_trainer(tmp_path, torch_compile_backend="nvcc")


class PackedTensor(torch.Tensor):
    """A weight as torchao makes them; its kernel may have no backward pass."""

    __module__ = "torchao.quantization"
    is_differentiable = True

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs)
        is_cut = function is torch.nn.functional.linear and not cls.is_differentiable
        return result.detach() if is_cut else result


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_differentiable": False}, "No gradient passes through `layer`, a PackedTensor of torchao on cpu"),
        ({"world_size": 2}, "weights of torchao, which cannot be copied between 2 processes"),
        ({"save_strategy": "steps"}, "no adapters, so its checkpoints could not be written"),
    ],
    ids=["no backward pass", "several processes", "no adapters"],
)
def test_unusable_weights_of_torchao_are_refused(changes, message, tmp_path, monkeypatch):
    class Quantised(Line):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            weight = torch.ones(1, 1).as_subclass(PackedTensor)
            self.layer.weight = torch.nn.Parameter(weight, requires_grad=False)

    monkeypatch.setattr(PackedTensor, "is_differentiable", changes.pop("is_differentiable", True))
    if "world_size" in changes:
        monkeypatch.setattr(portico.TrainingArguments, "world_size", changes.pop("world_size"))
    trainer = toy_trainer(tmp_path, parts={"model": Quantised()}, **{"max_steps": 1, "save_strategy": "no", **changes})
    with pytest.raises(portico.InputError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0


def test_model_quantised_by_bitsandbytes_stays_where_it_was_loaded(tmp_path):
    class Quantised(Line):
        quantization_method = "bitsandbytes"

        def to(self, *args, **kwargs):
            raise ValueError("`.to` is not supported for `4-bit` or `8-bit` bitsandbytes models.")

    assert toy_trainer(tmp_path, parts={"model": Quantised()}, max_steps=1).train().global_step == 1
