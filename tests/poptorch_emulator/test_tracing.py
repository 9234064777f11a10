"""Compilation finds the loss, and refuses what depends on data."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, options

rules = settings(max_examples=25, deadline=None)

BATCH = batches(1, 2, torch.float32)[0]


class TestLosses:
    def train(self, forward):
        class Model(Perceptron):
            pass

        Model.forward = forward
        executor = poptorch.trainingModel(Model(), None)
        return executor(*batches(1, 2, torch.float32)[0])

    def test_several_losses_inside_a_marked_one_are_allowed(self):
        def forward(self, x, y):
            out = self.second(self.first(x))
            return poptorch.identity_loss(functional.mse_loss(out, y) + functional.l1_loss(out, y), "none")

        assert torch.isfinite(self.train(forward))

    def test_loss_that_is_not_returned_is_used(self):
        def forward(self, x, y):
            out = self.second(self.first(x))
            functional.mse_loss(out, y)
            return out

        model = type("Model", (Perceptron,), {"forward": forward})()
        before = model.first.weight.clone()
        poptorch.trainingModel(model)(*batches(1, 2, torch.float32)[0])
        assert not torch.equal(before, model.first.weight)

    @pytest.mark.parametrize(("reduction", "value"), [("sum", 3.0), ("mean", 1.5), ("none", [1.0, 2.0]), (1, 1.5)])
    def test_identity_loss_reduces(self, reduction, value):
        assert poptorch.identity_loss(torch.tensor([1.0, 2.0]), reduction).tolist() == value

    def test_identity_loss_refuses_other_reductions(self):
        with pytest.raises(poptorch.Error, match="Unsupported reduction type 'max'"):
            poptorch.identity_loss(torch.ones(2), "max")

    def test_ignored_labels_give_a_mean_of_means(self):
        class Classifier(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.linear = nn.Linear(3, 4).double()

            def forward(self, x, labels):
                return functional.cross_entropy(self.linear(x), labels)

        x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([0, -100, -100, 1, 2, 3])
        with poptorch.configured(keeps_float64=True):
            model = Classifier()
            poptorch.trainingModel(model, options(accumulation=2), poptorch.optim.SGD(model.parameters(), lr=1.0))(
                x, labels
            )
        plain = Classifier()
        ((plain(x[:3], labels[:3]) + plain(x[3:], labels[3:])) / 2).backward()
        expected = plain.linear.weight - plain.linear.weight.grad
        assert float((model.linear.weight - expected).detach().abs().max()) <= 1e-12


@given(count=st.integers(0, 3), is_marked=st.booleans(), extra=st.booleans())
@rules
def test_model_needs_exactly_one_final_loss(count, is_marked, extra):
    class Model(Perceptron):
        def forward(self, x, labels):
            out = self.second(self.first(x))
            losses = [functional.mse_loss(out, labels * number) for number in range(count)]
            total = sum(losses, out.sum())
            if is_marked:
                total = poptorch.identity_loss(total, "none")
            return (total, functional.l1_loss(out, labels)) if extra else total

    number = (1 if is_marked else count) + extra
    executor = poptorch.trainingModel(Model())
    if number == 1:
        executor(*BATCH)
    else:
        message = "Couldn't find a loss in graph!"
        if number:
            message = (
                r"Multiple independent losses found in graph\. Graph must have one final loss\. Wrap final graph loss"
            )
        with pytest.raises(poptorch.Error, match=message):
            executor(*BATCH)


class TestStrict:
    @pytest.fixture(autouse=True)
    def strict(self):
        with poptorch.configured(strict=True):
            yield

    class Model(Perceptron):
        def forward(self, x, labels):
            return nn.functional.mse_loss(self.second(self.first(self.chosen(x))), labels)

    @pytest.mark.parametrize(
        "chosen",
        [
            lambda x: x if x.sum() > 0 else -x,
            lambda x: x[x[:, 0] > -100],
            lambda x: x * x.max().item(),
        ],
    )
    def test_data_dependent_models_are_refused(self, chosen):
        model = self.Model()
        model.chosen = chosen
        with pytest.raises(poptorch.Error, match="cannot be compiled: a shape or a branch depends on the values"):
            poptorch.trainingModel(model)(*BATCH)

    def test_other_models_are_accepted(self):
        model = self.Model()
        model.chosen = lambda x: torch.where(x > 0, x, -x)
        poptorch.trainingModel(model)(*BATCH)

    def test_random_numbers_of_python_warn(self):
        import random

        model = self.Model()
        model.chosen = lambda x: x * random.random()
        with pytest.warns(UserWarning, match="a compiled program repeats the draws of its compilation"):
            poptorch.trainingModel(model)(*BATCH)
