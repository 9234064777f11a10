"""Optimizers of programs: made from arguments or converted from torch's."""

import pytest
import torch
import transformers

import poptorch_emulator as poptorch
from emulator_peers import largest_difference, weights
from ipu_trainers import Sentences, classifier, ipu_trainer, plain_trainer, scaled_classifier
from portico.errors import InputError


class TestOptimizers:
    def test_default_is_adamw(self, tmp_path):
        trainer = ipu_trainer(tmp_path, weight_decay=0.1, loss_scaling=4.0, max_grad_norm=0.5)
        trainer.create_optimizer()
        assert type(trainer.optimizer) is poptorch.optim.AdamW
        assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]
        assert trainer.optimizer.loss_scaling == 4.0
        assert trainer.optimizer.max_grad_norm == 0.5
        assert trainer.optimizer.variable_attrs.isConstant("weight_decay")
        assert not trainer.optimizer.variable_attrs.isConstant("lr")

    @pytest.mark.parametrize(("argument", "corrects"), [("lamb", True), ("lamb_no_bias_correction", False)])
    def test_lamb_has_three_groups(self, tmp_path, argument, corrects):
        trainer = ipu_trainer(tmp_path, weight_decay=0.1, **{argument: True})
        trainer.train()
        groups = trainer.optimizer.param_groups
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.0]
        assert [group["max_weight_norm"] for group in groups] == [65500.0, 0.0, 65500.0]
        assert trainer.optimizer.bias_correction is corrects

    @pytest.mark.parametrize(
        "make",
        [
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            lambda p: torch.optim.Adam(p, lr=1e-3),
            lambda p: torch.optim.AdamW(p, lr=1e-3),
            lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
        ],
    )
    @pytest.mark.parametrize("make_model", [classifier, scaled_classifier])
    def test_torch_optimizers_are_converted_with_state(self, tmp_path, make, make_model):
        ours, theirs = make_model(), make_model()
        for model in (ours, theirs):
            optimizer = make(model.parameters())
            model(**transformers.default_data_collator([Sentences(seed=9)[0]])).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if model is ours:
                trainer = ipu_trainer(tmp_path, None, model, {"optimizers": (optimizer, None)}, max_steps=4)
        trainer.train()
        plain = plain_trainer(tmp_path, theirs, 2, max_steps=4)
        plain.optimizer = optimizer
        plain.train()
        assert largest_difference(weights(plain.model), weights(trainer.model)) < 1e-4

    def test_users_schedule_reaches_the_device(self, tmp_path):
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        trainer = ipu_trainer(tmp_path, None, model, {"optimizers": (optimizer, schedule)}, max_steps=3)
        with poptorch.injected(requires_set_optimizer=True):
            trainer.train()
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)

    def test_clips_to_max_grad_norm(self, tmp_path):
        trainer = ipu_trainer(tmp_path, max_grad_norm=1e-3, max_steps=1)
        plain = plain_trainer(tmp_path, classifier(), 2, max_grad_norm=1e-3, max_steps=1)
        for one in (trainer, plain):
            one.create_optimizer()
        trainer.train()
        plain.train()
        assert largest_difference(weights(plain.model), weights(trainer.model)) < 1e-5


def with_optimizer(output_dir, name, **options):
    model = classifier()
    changes = {"max_grad_norm": options.pop("norm", None)}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
    return ipu_trainer(output_dir, None, model, parts={"optimizers": (optimizer, None)}, **changes)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Adam", {"amsgrad": True}, "`amsgrad=True` of Adam has no counterpart on IPUs; leave it out"),
        (
            "SGD",
            {"momentum": 0.9, "nesterov": True},
            "`nesterov=True` of SGD has no counterpart on IPUs; leave it out",
        ),
        ("SGD", {"maximize": True}, "`maximize=True` of SGD has no counterpart on IPUs; .* negate the loss"),
        ("Adam", {"decoupled_weight_decay": True}, "`decoupled_weight_decay=True` of Adam has no .* use `AdamW`"),
    ],
)
def test_hyperparameters_without_counterpart_are_refused(tmp_path, name, options, message):
    with pytest.raises(InputError, match=message):
        with_optimizer(tmp_path, name, **options)


def test_rmsprop_does_not_clip(tmp_path, caplog):
    with_optimizer(tmp_path, "RMSprop", norm=1.0)
    assert "`max_grad_norm=1.0` has no effect on RMSprop, which cannot clip on IPUs" in caplog.text


def test_optimizer_without_counterpart_is_refused(tmp_path):
    with pytest.raises(KeyError, match="Could not find a PopTorch counterpart for optimizer Adagrad"):
        with_optimizer(tmp_path, "Adagrad")


def test_optimizer_of_another_model_is_refused(tmp_path):
    other = poptorch.optim.SGD(classifier().parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"do not belong to the `model` of the trainer; create it with `model.param"):
        ipu_trainer(tmp_path, parts={"optimizers": (other, None)})
