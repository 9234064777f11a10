import importlib
import sys
import types

import pytest
import torch
import transformers
from torch import nn

import portico
from models import Line, tiny_bert, toy_arguments, toy_trainer
from portico.loop.optim import (
    build_optimizer,
    decay_parameter_names,
    parameter_groups,
    scheduler_config,
)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)
        self.frozen = nn.Linear(2, 2)
        self.frozen.requires_grad_(False)


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def test_weight_decay_excludes_biases_and_norms():
    model = Normed()
    assert set(decay_parameter_names(model)) == {"linear.weight", "frozen.weight"}
    decayed, spared = parameter_groups(model, decay_parameter_names(model), 0.1)
    assert [id(parameter) for parameter in decayed["params"]] == [id(model.linear.weight)]
    assert decayed["weight_decay"] == 0.1
    expected = [model.linear.bias, model.norm.weight, model.norm.bias]
    assert [id(parameter) for parameter in spared["params"]] == [id(parameter) for parameter in expected]
    assert spared["weight_decay"] == 0.0


def test_decay_parameters_equal_transformers():
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    model = transformers.BertForSequenceClassification(config)
    names = transformers.Trainer.get_decay_parameter_names(None, model)
    assert decay_parameter_names(model) == names


@pytest.mark.parametrize("name", ["params", "model", "optimizer_dict"])
def test_optimizer_kwargs_with_own_parameters(name):
    own = nn.Parameter(torch.ones(1))
    optimizer = build_optimizer(Line(), [{"params": []}], torch.optim.SGD, {"lr": 0.1, name: [own]})
    assert optimizer.param_groups[0]["params"][0] is own


def test_optimizer_cls_and_kwargs():
    kwargs = {"lr": 0.1, "params": [nn.Parameter(torch.ones(1))]}
    build_optimizer(Line(), [], torch.optim.SGD, kwargs)
    assert set(kwargs) == {"lr", "params"}


def test_plateau_is_not_stepped_per_step():
    optimizer = torch.optim.SGD(Line().parameters(), lr=0.3)
    stepping = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert scheduler_config(None, optimizer) == scheduler_config(plateau(optimizer), optimizer) == {}
    assert scheduler_config(stepping, optimizer) == {"lr_scheduler": {"scheduler": stepping, "interval": "step"}}


def test_learning_rate_sources(tmp_path):
    trainer = toy_trainer(tmp_path)

    def learning_rate(optimizer, scheduler):
        trainer.optimizer, trainer.lr_scheduler = optimizer, scheduler
        return trainer._get_learning_rate()

    optimizer = torch.optim.SGD(Line().parameters(), lr=0.3)
    assert learning_rate(optimizer, None) == learning_rate(optimizer, plateau(optimizer)) == 0.3
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5)
    assert learning_rate(optimizer, schedule) == 0.15
    tensor = torch.optim.SGD(Line().parameters(), lr=torch.tensor(0.25))
    assert learning_rate(tensor, None) == 0.25


def test_optimizer_accessors(tmp_path):
    trainer = toy_trainer(tmp_path, weight_decay=0.1)
    optimizer = trainer.create_optimizer()
    assert trainer.create_optimizer() is optimizer
    assert trainer.get_learning_rates() == [0.1, 0.1]
    assert trainer.get_optimizer_group(trainer.model.linear.weight)["weight_decay"] == 0.1
    assert trainer.get_optimizer_group(nn.Parameter(torch.ones(1))) is None
    assert len(trainer.get_optimizer_group()) == 2
    assert trainer.get_num_trainable_parameters() == 4


def test_overridden_create_optimizer_and_scheduler_is_called(tmp_path):
    class Own(portico.Trainer):
        steps = None

        def create_optimizer_and_scheduler(self, num_training_steps):
            self.steps = num_training_steps
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)

    trainer = toy_trainer(tmp_path, Own)
    trainer.train()
    assert trainer.steps == 10
    assert trainer.state.log_history[0]["learning_rate"] == 0.5


def test_optimizer_without_closure(tmp_path):
    class Plain(torch.optim.SGD):
        def step(self):
            return super().step()

    class Own(portico.Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = Plain(self.model.parameters(), lr=0.1)
            return self.optimizer

    trainer = toy_trainer(tmp_path, Own)
    before = trainer.model.linear.weight.detach().clone()
    trainer.train()
    assert not torch.equal(trainer.model.linear.weight, before)


def test_optimizer_hook_sees_gradients(tmp_path):
    seen = []

    class Own(portico.Trainer):
        def create_optimizer(self, model=None):
            optimizer = super().create_optimizer(model)
            optimizer.register_step_pre_hook(
                lambda *_: seen.append(self.model.linear.weight.grad is not None) and None
            )
            return optimizer

    toy_trainer(tmp_path, Own, max_steps=2).train()
    assert seen == [True, True]


class Fused(torch.optim.SGD):
    """An optimizer that updates the weights during its own backward pass, as LOMO does."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.rates = []

    def fused_backward(self, loss, lr):
        self.rates.append(lr)
        loss.backward()
        for parameter in self.param_groups[0]["params"]:
            parameter.data -= lr * parameter.grad
            parameter.grad = None

    def step(self, closure=None):
        pytest.fail("its parameters are updated in the backward pass")


def test_fused_backward_optimizer_gets_learning_rate(tmp_path):
    parts = {"optimizer_cls_and_kwargs": (Fused, {"lr": 0.1})}
    trainer = toy_trainer(tmp_path, parts=parts, max_steps=4)
    before = trainer.model.linear.weight.detach().clone()
    trainer.train()
    assert trainer.optimizer.rates == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert not torch.equal(trainer.model.linear.weight, before)


def test_embeddings_keep_32_bit_states(monkeypatch):
    overrides = []

    class Overrides:
        def register_module_override(self, module, name, options):
            overrides.append((module, name, options))

    class EightBit(torch.optim.SGD):
        def __init__(self, parameters, lr, optim_bits):
            super().__init__(parameters, lr=lr)

    EightBit.__module__ = "bitsandbytes.optim"
    package = types.ModuleType("bitsandbytes")
    package.optim = types.SimpleNamespace(GlobalOptimManager=types.SimpleNamespace(get_instance=Overrides))
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2))
    groups = parameter_groups(model, [], 0.0)
    build_optimizer(model, groups, EightBit, {"lr": 0.1, "optim_bits": 32})
    assert not overrides
    build_optimizer(model, groups, EightBit, {"lr": 0.1, "optim_bits": 8})
    assert overrides == [(model[0], "weight", {"optim_bits": 32})]


def test_missing_optimizer_package_is_import_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("transformers.trainer_optimizer"), "is_schedulefree_available", lambda *_: False
    )
    with pytest.raises(
        ImportError, match=r"`optim='schedule_free_sgd'` cannot be used: .*install `schedulefree`"
    ) as raised:
        toy_trainer(tmp_path, optim="schedule_free_sgd").train()
    assert isinstance(raised.value, portico.InputError)


def test_optimizer_is_found_after_the_trainer_was_put_in_the_place_of_another(tmp_path, monkeypatch):
    expected = transformers.Trainer.get_optimizer_cls_and_kwargs(toy_arguments(tmp_path))
    # By name: the module may have been executed a second time since it was imported here.
    monkeypatch.setattr("transformers.Trainer", portico.Trainer)
    assert portico.Trainer.get_optimizer_cls_and_kwargs(toy_arguments(tmp_path)) == expected


def test_states_of_resized_parameters_start_afresh(tmp_path, caplog):
    model = tiny_bert()
    rows = [{"input_ids": torch.arange(1, 7), "labels": index % 2} for index in range(4)]
    trainer = toy_trainer(tmp_path, parts={"model": model, "train_dataset": rows}, max_steps=2)
    trainer.train()
    kept = trainer.optimizer.state[model.classifier.weight]["exp_avg"]
    model.resize_token_embeddings(model.config.vocab_size + 10, mean_resizing=False)
    trainer.train()
    embeddings = model.get_input_embeddings().weight
    assert trainer.optimizer.state[embeddings]["exp_avg"].shape == embeddings.shape
    assert trainer.optimizer.state[embeddings]["step"] == 2
    assert trainer.optimizer.state[model.classifier.weight]["exp_avg"] is kept
    assert "bert.embeddings.word_embeddings.weight changed in shape since the last training" in caplog.text
    caplog.clear()
    trainer.train()
    assert "changed in shape" not in caplog.text
