"""A call makes the updates and random numbers of its device iterations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, options

MODES = poptorch.OutputMode


few = st.integers(1, 3)


shapes = {"iterations": few, "accumulation": few, "replicas": st.sampled_from([1, 2, 4])}


rules = settings(max_examples=25, deadline=None)


class Follower(nn.Module):
    """A weight that one step with learning rate 1 moves to the mean of the rows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return x, self.weight + 0, poptorch.identity_loss((self.weight - x).pow(2) / 2, "mean")


class Slope(Follower):
    """A weight whose gradient is the mean of the rows."""

    def forward(self, x):
        return x, self.weight + 0, poptorch.identity_loss(self.weight * x, "mean")


def rows_of(iterations, accumulation, replicas, size=1):
    generator = torch.Generator().manual_seed(iterations * 100 + accumulation * 10 + replicas)
    return torch.rand(iterations * accumulation * replicas * size, generator=generator, dtype=torch.float64)


def train(model, x, shape, output=MODES.All, reduction=poptorch.ReductionType.Mean, period=None, **optimizer):
    chosen = options(*shape, reduction=reduction).outputMode(output, period)
    sgd = poptorch.optim.SGD(model.parameters(), **{"lr": 1.0, **optimizer})
    with poptorch.configured(keeps_float64=True):
        return poptorch.trainingModel(model, chosen, sgd)(x)


@given(**shapes, size=few)
@rules
def test_iterations_are_outermost_and_replicas_innermost(iterations, accumulation, replicas, size):
    x = rows_of(iterations, accumulation, replicas, size)
    found = train(Follower(), x, (iterations, replicas, accumulation), MODES.Final)[0]
    # Index ((d * A + a) * R + r), with d and a the last ones.
    expected = [((iterations * accumulation - 1) * replicas + replica) * size for replica in range(replicas)]
    assert found.tolist() == [value for first in expected for value in x[first : first + size].tolist()]


@given(**shapes)
@rules
def test_every_iteration_is_one_update_from_its_own_rows(iterations, accumulation, replicas):
    x = rows_of(iterations, accumulation, replicas)
    weights = train(Follower(), x, (iterations, replicas, accumulation))[1]
    means = x.reshape(iterations, -1).mean(1)
    # During an iteration the weight is what the one before made it.
    before = torch.cat([torch.zeros(1, dtype=torch.float64), means[:-1]])
    assert torch.allclose(weights.reshape(iterations, -1), before[:, None].expand(iterations, accumulation * replicas))


@given(**shapes, reduction=st.sampled_from([poptorch.ReductionType.Mean, poptorch.ReductionType.Sum]))
@rules
def test_gradients_are_summed_or_averaged_over_micro_batches(iterations, accumulation, replicas, reduction):
    x, model = rows_of(iterations, accumulation, replicas, 2), Slope()
    train(model, x, (iterations, replicas, accumulation), reduction=reduction)
    slopes = x.reshape(iterations, accumulation * replicas, 2).mean(2)
    slope = slopes.mean(1) if reduction is poptorch.ReductionType.Mean else slopes.sum(1)
    assert model.weight.item() == pytest.approx(-slope.sum().item(), abs=1e-12)


@given(power=st.integers(0, 20), accumulation=few)
@rules
def test_loss_scaling_does_not_change_weights(power, accumulation):
    found = []
    for scaling in (1.0, 2.0**power):
        model = Follower()
        train(model, rows_of(2, accumulation, 1), (2, 1, accumulation), loss_scaling=scaling, momentum=0.5)
        found.append(model.weight.item())
    assert found[0] == found[1]


# Names in `torch.optim`, and hyperparameters to draw.
OPTIMIZERS = {
    "SGD": {"momentum": st.sampled_from([0.0, 0.9]), "weight_decay": st.sampled_from([0.0, 0.1])},
    "Adam": {"eps": st.sampled_from([1e-8, 1e-3]), "weight_decay": st.sampled_from([0.0, 0.1])},
    "AdamW": {"eps": st.sampled_from([1e-8, 1e-3]), "weight_decay": st.sampled_from([0.0, 0.1])},
    "RMSprop": {"alpha": st.sampled_from([0.5, 0.99]), "momentum": st.sampled_from([0.0, 0.9])},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@given(data=st.data(), lr=st.floats(1e-4, 0.5), num_calls=few)
@settings(max_examples=12, deadline=None)
def test_updates_equal_those_of_torch_on_device_and_host(name, data, lr, num_calls):
    chosen = {key: data.draw(values) for key, values in OPTIMIZERS[name].items()}
    device, host, plain = Follower(), Follower(), Follower()
    own = getattr(poptorch.optim, name)(device.parameters(), lr=lr, **chosen)
    with poptorch.configured(keeps_float64=True):
        executor = poptorch.trainingModel(device, None, own)
        for _ in range(num_calls):
            executor(torch.ones(1, dtype=torch.float64))
    on_host = getattr(poptorch.optim, name)(host.parameters(), lr=lr, **chosen)
    torchs = getattr(torch.optim, name)(plain.parameters(), lr=lr, **chosen)
    for model, optimizer in ((host, on_host), (plain, torchs)):
        for _ in range(num_calls):
            optimizer.zero_grad()
            model(torch.ones(1, dtype=torch.float64))[2].backward()
            optimizer.step()
    assert device.weight.item() == pytest.approx(plain.weight.item(), abs=1e-12)
    assert host.weight.item() == plain.weight.item()


BATCH = batches(1, 4, torch.float32)[0]


class TestRandomness:
    def losses(self, seed):
        model = Perceptron(dropout=0.5)
        frozen = poptorch.optim.SGD(model.parameters(), lr=0.0)
        executor = poptorch.trainingModel(model, options(2).randomSeed(seed), frozen)
        return [float(executor(*BATCH)[1]) for _ in range(3)]

    def test_random_numbers_differ_by_seed_call_and_replica(self):
        one, other = self.losses(5), self.losses(6)
        assert len({*one, *other}) == 6

        class Drop(nn.Module):
            def forward(self, x):
                return nn.functional.dropout(x, training=True)

        found = poptorch.inferenceModel(Drop(), options(1, 2))(torch.ones(2, 32))
        assert not torch.equal(found[0], found[1])

    def test_seeding_the_options_seeds_the_host(self):
        poptorch.Options().randomSeed(9)
        drawn = torch.rand(1)
        torch.manual_seed(9)
        assert torch.equal(drawn, torch.rand(1))


class Noise(nn.Module):
    def forward(self, x):
        return torch.rand(3) + x


@given(seed=st.integers(0, 2**31), first=st.integers(0, 3), second=st.integers(1, 3), replicas=st.sampled_from([1, 2]))
@rules
def test_random_numbers_never_repeat_and_can_be_resumed(seed, first, second, replicas):
    def program():
        return poptorch.inferenceModel(Noise(), options(1, replicas).randomSeed(seed))

    x = torch.zeros(replicas, 1)
    whole = program()
    every = [whole(x) for _ in range(first + second)]
    stopped, resumed = program(), program()
    before = [stopped(x) for _ in range(first)]
    for program_ in (stopped, resumed):
        program_.compile(x)
    torch.manual_seed(0)
    resumed.rng_state = stopped.rng_state
    after = [resumed(x) for _ in range(second)]
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(0)))
    assert all(map(torch.equal, every, before + after))
    drawn = torch.cat(every).flatten().tolist()
    assert len(set(drawn)) == len(drawn)


def test_hooks_are_called_around_compilations():
    seen = []
    handles = [
        poptorch.registerPreCompileHook(lambda: seen.append("before")),
        poptorch.registerPostCompileHook(lambda: seen.append("after")),
    ]
    executor = poptorch.trainingModel(Perceptron())
    executor(*BATCH)
    executor(*BATCH)
    for handle in handles:
        handle.remove()
    poptorch.trainingModel(Perceptron())(*BATCH)
    assert seen == ["before", "after"]


@pytest.mark.parametrize(
    ("register", "kind"),
    [(poptorch.registerPreCompileHook, "Pre-compile"), (poptorch.registerPostCompileHook, "Post-compile")],
)
@pytest.mark.parametrize("hook", [None, "hook", 3])
def test_hooks_that_cannot_be_called_are_refused_when_they_are_registered(register, kind, hook):
    with pytest.raises(RuntimeError, match=f"{kind} hook must be callable; {hook!r} was given"):
        register(hook)
    assert poptorch.inferenceModel(nn.Identity())(torch.ones(1)).item() == 1
