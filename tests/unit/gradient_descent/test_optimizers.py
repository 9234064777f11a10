"""AllenNLP's optimizers, and the parameters they get."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn

from portico.gradient_descent import ConfigurationError, Optimizer, from_params
from unit.gradient_descent.plain_training import Net, PlainTraining, assert_same_weights, make_trainer, weights


def made(params, model):
    return from_params(Optimizer, params, model_parameters=list(model.named_parameters()))


def test_parameter_groups_by_pattern(caplog):
    model = Net()
    params = {
        "type": "adamw",
        "lr": 0.1,
        "parameter_groups": [
            [["inner.bias"], {"requires_grad": False, "lr": 9.0}],
            [["^outer", "no such"], {"lr": 0.5}],
        ],
    }
    optimizer = made(params, model)
    assert type(optimizer) is torch.optim.AdamW
    first, rest = optimizer.param_groups
    assert (first["lr"], rest["lr"]) == (0.5, 0.1)
    assert [id(parameter) for parameter in first["params"]] == [id(model.outer.weight), id(model.outer.bias)]
    assert [id(parameter) for parameter in rest["params"]] == [id(model.inner.weight)]
    assert not model.inner.bias.requires_grad
    assert "'no such' matches no parameter name" in caplog.text
    assert "options of a frozen parameter group have no effect: lr" in caplog.text


def test_every_optimizer_updates_parameters():
    for name in Optimizer.list_available():
        if name in ("sparse_adam", "multi"):
            continue
        model = Net()
        needed = {"lr": 0.1} if name == "sgd" else {}
        optimizer = made({"type": name, **needed}, model)
        before = weights(model)
        model(torch.ones(2, 3), torch.zeros(2, 1))["loss"].backward()
        optimizer.step()
        assert not torch.equal(model.outer.bias, before["outer.bias"]), name


class Embedded(nn.Module):
    """A model with one sparse and one dense gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(6, 4, sparse=True)
        self.score = nn.Linear(4, 1)

    def forward(self, words):
        return {"loss": self.score(self.words(words)).pow(2).mean()}


BATCHES = [torch.tensor([0, 1, 1]), torch.tensor([4, 1]), torch.tensor([0, 5, 0])]


def trained(model, optimizer):
    for batch in BATCHES * 3:
        optimizer.zero_grad()
        model(batch)["loss"].backward()
        optimizer.step()
    return weights(model)


def test_dense_sparse_adam_with_sparse_gradients():
    model, peer = Embedded(), Embedded()
    ours = trained(model, made({"type": "dense_sparse_adam", "lr": 0.1}, model))
    both = {
        "type": "multi",
        "parameter_groups": [[["words"], {"optimizer_name": "sparse"}]],
        "optimizers": {
            "default": {"type": "adam", "lr": 0.1, "eps": 0.0},
            "sparse": {"type": "sparse_adam", "lr": 0.1},
        },
    }
    theirs = trained(peer, made(both, peer))
    assert torch.equal(ours["words.weight"][[2, 3]], Embedded().words.weight[[2, 3]])
    # torch's Adam adds `eps` after the bias correction.
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], atol=1e-5), name


def test_dense_sparse_adam_with_dense_gradients():
    model, peer = Net(), Net()
    optimizer = made({"type": "dense_sparse_adam", "lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-6}, model)
    first = {name: torch.zeros_like(tensor) for name, tensor in peer.named_parameters()}
    second = {name: torch.zeros_like(tensor) for name, tensor in peer.named_parameters()}
    x, labels = torch.ones(2, 3), torch.zeros(2, 1)
    for step in range(1, 201):
        for one in (model, peer):
            one.eval()
            one.zero_grad()
            one(x, labels)["loss"].backward()
        optimizer.step()
        with torch.no_grad():
            for name, parameter in peer.named_parameters():
                first[name].mul_(0.8).add_(parameter.grad, alpha=1 - 0.8)
                second[name].mul_(0.9).addcmul_(parameter.grad, parameter.grad, value=1 - 0.9)
                size = 0.1 * math.sqrt(1 - 0.9**step) / (1 - 0.8**step)
                parameter.addcdiv_(first[name], second[name].sqrt().add_(1e-6), value=-size)
        assert_same_weights(weights(model), weights(peer))


def test_huggingface_adamw_has_its_former_defaults():
    optimizer = made({"type": "huggingface_adamw", "correct_bias": True}, Net())
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (1e-5, 0.0)


def test_huggingface_adamw_without_bias_correction():
    model, peer = Net().eval(), Net().eval()
    peer.load_state_dict(model.state_dict())
    options = {"lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.3}
    optimizer = made({"type": "huggingface_adamw", "correct_bias": False, **options}, model)
    first = {name: torch.zeros_like(parameter) for name, parameter in peer.named_parameters()}
    second = {name: torch.zeros_like(parameter) for name, parameter in peer.named_parameters()}
    for _ in range(3):
        for one in (model, peer):
            one.zero_grad()
            one(torch.ones(2, 3), torch.zeros(2, 1))["loss"].backward()
        optimizer.step()
        with torch.no_grad():
            # As in transformers 4.57, `optimization.AdamW.step`.
            for name, parameter in peer.named_parameters():
                first[name].mul_(0.8).add_(parameter.grad, alpha=1 - 0.8)
                second[name].mul_(0.9).addcmul_(parameter.grad, parameter.grad, value=1 - 0.9)
                parameter.addcdiv_(first[name], second[name].sqrt().add_(1e-6), value=-0.1)
                parameter.add_(parameter, alpha=-0.1 * 0.3)
        assert_same_weights(weights(model), weights(peer))
    resumed = made({"type": "huggingface_adamw", "correct_bias": False, **options}, peer)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for one, steps in ((model, optimizer), (peer, resumed)):
        one.zero_grad()
        one(torch.ones(2, 3), torch.zeros(2, 1))["loss"].backward()
        steps.step()
    assert_same_weights(weights(model), weights(peer))


def test_unknown_option_of_a_parameter_group_has_no_effect(caplog):
    optimizer = made({"type": "adam", "parameter_groups": [[["inner"], {"lrr": 1.0}]]}, Net())
    assert [group["lr"] for group in optimizer.param_groups] == [0.001, 0.001]
    assert (
        "A parameter group has the option `lrr`, which has no effect, as Adam does not know it; it kn" in caplog.text
    )


MULTI = {
    "type": "multi",
    "parameter_groups": [
        [["^outer.weight"], {"optimizer_name": "outer", "lr": 0.1}],
        [["^outer.bias"], {"optimizer_name": "outer"}],
        [["^inner.bias"], {"lr": 0.1}],
    ],
    "optimizers": {
        "default": {"type": "sgd", "lr": 0.1, "momentum": 0.9},
        "outer": {"type": "sgd", "lr": 0.1, "momentum": 0.9},
    },
}


def test_multi_optimizer_acts_as_one():
    model = Net()
    trainer = make_trainer(model=model, optimizer=made(MULTI, model))
    trainer.train()
    # The last group of each optimizer is for what no pattern matches.
    assert [len(group["params"]) for group in trainer.optimizer.param_groups] == [1, 1, 1, 1, 0]
    assert_same_weights(weights(model), PlainTraining().run().best)


def test_multi_optimizer_resumes(tmp_path):
    def trainer(folder, num_epochs):
        model = Net()
        return make_trainer(folder, model=model, optimizer=made(MULTI, model), num_epochs=num_epochs)

    whole = trainer(tmp_path / "whole", 3)
    whole.train()
    trainer(tmp_path / "two", 2).train()
    resumed = trainer(tmp_path / "two", 3)
    resumed.train()
    assert_same_weights(weights(resumed.model), weights(whole.model))
    for group, other in zip(resumed.optimizer.param_groups, resumed.optimizer._all_groups(), strict=True):
        assert group is other


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"type": "sgd", "betas": [0.9, 0.9]}, r"`betas` is not an argument of `SGD`.* It takes: model_param"),
        (
            {"parameter_groups": [[["inner"], {}], [["bias"], {}]]},
            r"'inner.bias' belongs to two parameter groups",
        ),
        *(
            ({"type": "dense_sparse_adam", **options}, r"DenseSparseAdam got `lr=.*set `lr` and `eps` to 0 or more")
            for options in ({"lr": -1}, {"eps": -1.0}, {"betas": [0.9, 1.0]})
        ),
        (
            {**MULTI, "optimizers": {"outer": "adam"}},
            "`optimizers` of the optimizer 'multi' holds outer, but not 'default'",
        ),
        (
            {**MULTI, "optimizers": {"default": "adam"}},
            "has `optimizer_name='outer'`, but `optimizers` holds default; add it",
        ),
        (
            {**MULTI, "parameter_groups": []},
            "optimizer 'outer' of 'multi' has no parameters; let a parameter",
        ),
        ({**MULTI, "optimizers": {"default": "adamx"}}, "'adamx' is not a registered name for Optimizer"),
    ],
)
def test_what_makes_no_optimizer_is_refused(params, match):
    with pytest.raises(ConfigurationError, match=match):
        made(params, Net())
