"""Emulated training makes the updates of a plain loop over the whole global batch."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, emulated_weights, largest_difference, options, plain_weights, weights
from poptorch_emulator.batches import BatchLayout, MicroBatch
from poptorch_emulator.weight_updates import DeviceOptimizer

SHAPES = list(itertools.product([1, 4], [1, 2], [1, 4]))


class PlainOptimizer(torch.optim.Optimizer):
    """An optimizer whose ``update`` is written from its formula."""

    def __init__(self, params, **defaults):
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, self.state[p], group)


class PlainLAMB(PlainOptimizer):
    """LAMB, with and without bias correction."""

    def update(self, p, state, group):
        if not state:
            state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
        state["t"] += 1
        state["m"] = 0.9 * state["m"] + 0.1 * p.grad
        state["v"] = 0.999 * state["v"] + 0.001 * p.grad**2
        m, v = state["m"], state["v"]
        if group["bias_correction"]:
            m, v = m / (1 - 0.9 ** state["t"]), v / (1 - 0.999 ** state["t"])
        step = m / (v.sqrt() + 1e-6) + 0.01 * p
        ratio = p.norm() / step.norm() if p.norm() > 0 and step.norm() > 0 else 1.0
        p -= group["lr"] * ratio * step


class PlainTensorflowRMSprop(PlainOptimizer):
    """RMSprop as TensorFlow computes it."""

    def update(self, p, state, group):
        if not state:
            state.update(square=torch.ones_like(p), velocity=torch.zeros_like(p))
        state["square"].mul_(0.99).add_(0.01 * p.grad**2)
        state["velocity"].mul_(0.5).add_(group["lr"] * p.grad / (state["square"] + 1e-8).sqrt())
        p -= state["velocity"]


OPTIMIZERS = {
    "sgd": (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, loss_scaling=128.0),
        1e-12,
    ),
    "adam": (
        lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.01),
        lambda p: poptorch.optim.Adam(p, lr=1e-2, weight_decay=0.01, loss_scaling=128.0),
        1e-9,
    ),
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.01),
        lambda p: poptorch.optim.AdamW(p, lr=1e-2, weight_decay=0.01, loss_scaling=128.0),
        1e-9,
    ),
    "adamw without bias correction, which devices ignore": (
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.01),
        lambda p: poptorch.optim.AdamW(p, lr=1e-2, weight_decay=0.01, bias_correction=False),
        1e-9,
    ),
    "torch's own adamw": (
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.01),
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.01),
        1e-9,
    ),
    "lamb": (
        lambda p: PlainLAMB(p, lr=1e-2, bias_correction=True),
        lambda p: poptorch.optim.LAMB(p, lr=1e-2, eps=1e-6, loss_scaling=128.0),
        1e-9,
    ),
    "lamb without bias correction": (
        lambda p: PlainLAMB(p, lr=1e-2, bias_correction=False),
        lambda p: poptorch.optim.LAMB(p, lr=1e-2, eps=1e-6, bias_correction=False),
        1e-9,
    ),
    "rmsprop": (
        lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True, weight_decay=0.01),
        lambda p: poptorch.optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True, weight_decay=0.01),
        1e-9,
    ),
}


@pytest.mark.parametrize(("iterations", "replicas", "accumulation"), SHAPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_equal_those_of_a_plain_loop(name, iterations, replicas, accumulation):
    plain, emulated, tolerance = OPTIMIZERS[name]
    data = batches(4, 2 * iterations * replicas * accumulation)
    expected = plain_weights(plain, data, iterations)
    found = emulated_weights(emulated, data, options(iterations, replicas, accumulation))
    assert largest_difference(expected, found) <= tolerance
    assert largest_difference(expected, weights(Perceptron().double())) > 1e-3, "training moved nothing"


class TestComparisonCanFail:
    """Mistakes that the comparison above must catch."""

    def difference(self, name, iterations=4, replicas=2, accumulation=4, **modes):
        plain, emulated, _ = OPTIMIZERS[name]
        data = batches(4, 2 * iterations * replicas * accumulation)
        expected = plain_weights(plain, data, iterations)
        found = emulated_weights(emulated, data, options(iterations, replicas, accumulation, **modes))
        return largest_difference(expected, found)

    def test_wrong_batch_layout_is_noticed(self, monkeypatch):
        def replica_outermost(self, iteration):
            for place in original(self, iteration):
                index = (place.replica * self.device_iterations + iteration) * self.gradient_accumulation
                yield MicroBatch(iteration, place.accumulation, place.replica, index + place.accumulation)

        original = BatchLayout.iteration
        monkeypatch.setattr(BatchLayout, "iteration", replica_outermost)
        assert self.difference("adamw") > 1e-3

    def test_lost_optimizer_state_is_noticed(self, monkeypatch):
        original = DeviceOptimizer.set_optimizer

        def forgetful(self, optimizer):
            original(self, optimizer)
            self.state, self.num_updates = {}, 0

        monkeypatch.setattr(DeviceOptimizer, "set_optimizer", forgetful)
        assert self.difference("adamw") > 1e-3

    def test_sum_instead_of_mean_is_noticed_with_sgd(self):
        assert self.difference("sgd", reduction=poptorch.ReductionType.Sum) > 1e-2


def test_rmsprop_of_tensorflow():
    data = batches(4, 2)
    found = emulated_weights(
        lambda p: poptorch.optim.RMSprop(p, lr=0.01, momentum=0.5, use_tf_variant=True), data, options()
    )
    assert largest_difference(plain_weights(lambda p: PlainTensorflowRMSprop(p, lr=0.01), data, 1), found) <= 1e-9


def test_clipping_uses_the_norm_over_all_weights():
    class Clipped(torch.optim.SGD):
        def step(self, closure=None):
            torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
            return super().step(closure)

    data = batches(3, 4)
    found = emulated_weights(
        lambda p: poptorch.optim.SGD(p, lr=0.1, max_grad_norm=0.05, loss_scaling=64.0), data, options(1, 2, 2)
    )
    assert largest_difference(plain_weights(lambda p: Clipped(p, lr=0.1), data, 1), found) <= 1e-12


def test_running_mean_equals_the_mean():
    strategy = poptorch.MeanReductionStrategy.Running
    chosen = options(1, 2, 4)
    chosen.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    data = batches(3, 16)
    found = emulated_weights(lambda p: poptorch.optim.SGD(p, lr=0.1), data, chosen)
    assert largest_difference(plain_weights(lambda p: torch.optim.SGD(p, lr=0.1), data, 1), found) <= 1e-12


def test_frozen_parameters_and_those_outside_the_optimizer_do_not_change():
    model = Perceptron()
    model.first.bias.requires_grad_(False)
    before = weights(model)
    optimizer = poptorch.optim.SGD([model.first.weight, model.first.bias], lr=0.1)
    poptorch.trainingModel(model, None, optimizer)(*batches(1, 2, torch.float32)[0])
    after = weights(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"first.weight"}


def test_large_loss_scaling_overflows_half_precision():
    model = Perceptron().half()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=2.0**30, accum_type=torch.float16)
    executor = poptorch.trainingModel(model, options(accumulation=2), optimizer)
    batch = batches(1, 4, torch.float16)[0]
    executor(*batch)
    assert not torch.isfinite(executor(*batch)[1])


class TestAutomaticLossScaling:
    def executor(self, model, initial):
        chosen = options()
        chosen.Training.setAutomaticLossScaling(True)
        return poptorch.trainingModel(
            model, chosen, poptorch.optim.SGD(model.parameters(), lr=1e-3, loss_scaling=initial)
        )

    def test_scaling_doubles_while_gradients_are_small(self):
        executor = self.executor(Perceptron().half(), 1.0)
        batch = batches(1, 2, torch.float16)[0]
        seen = []
        for _ in range(4):
            executor(*batch)
            seen.append(executor.loss_scaling)
        assert seen == [2.0, 4.0, 8.0, 16.0]

    def test_scaling_halves_when_gradients_come_close_to_overflow(self):
        executor = self.executor(Perceptron().half(), 2.0**12)
        x, labels = batches(1, 2, torch.float16)[0]
        executor(x, labels * 4)
        assert executor.loss_scaling == 2.0**11
        assert all(torch.isfinite(parameter).all() for parameter in executor.model.parameters())

    def test_scaling_stays_within_the_dtype_of_the_loss(self):
        executor = self.executor(Perceptron().half(), 2.0**15)
        x, _ = batches(1, 2, torch.float16)[0]
        executor(x, executor.model(x).detach())
        assert executor.loss_scaling == 2.0**15

    def test_automatic_scaling_does_not_change_updates(self):
        data = batches(4, 4)
        chosen = options(2, 1, 2)
        chosen.Training.setAutomaticLossScaling(True)
        found = emulated_weights(lambda p: poptorch.optim.SGD(p, lr=0.1), data, chosen)
        assert largest_difference(plain_weights(lambda p: torch.optim.SGD(p, lr=0.1), data, 2), found) <= 1e-12

    def test_scaling_is_part_of_the_optimizer_state(self):
        executor = self.executor(Perceptron().half(), 4.0)
        batch = batches(1, 2, torch.float16)[0]
        executor(*batch)
        state = executor.optimizer.state_dict()
        assert state["ipu_param"]["loss_scaling"] == 8.0
        resumed = self.executor(Perceptron().half(), 4.0)
        resumed.optimizer.load_state_dict(state)
        resumed(*batch)
        assert resumed.loss_scaling == 16.0


@given(frozen=st.sets(st.sampled_from(["first", "second"])), num_calls=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_only_weights_that_are_not_frozen_are_trained(frozen, num_calls):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return poptorch.identity_loss(((self.first + self.second) * x).mean(), "none")

    model = Two()
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    executor = poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=1.0))
    for _ in range(num_calls):
        executor(torch.ones(1))
    for name in ("first", "second"):
        assert getattr(model, name).item() == (0 if name in frozen else -num_calls)
