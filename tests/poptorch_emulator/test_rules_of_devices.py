"""E-10 to E-13, E-16, E-20 to E-23: what is the device's own, in any order of events."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import options
from poptorch_emulator.machine import pool

rules = settings(max_examples=25, deadline=None)
ONE = torch.ones(1)


class Falling(nn.Module):
    """A weight that every step lowers by the learning rate."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.weight + 0, poptorch.identity_loss((self.weight * x).mean(), "none")


def falling(**options_of_sgd):
    model = Falling()
    optimizer = poptorch.optim.SGD(model.parameters(), **{"lr": 1.0, **options_of_sgd})
    return model, optimizer, poptorch.trainingModel(model, None, optimizer)


@given(st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.booleans()), min_size=1, max_size=6))
@rules
def test_e10_a_rate_counts_once_the_device_was_told(changes):
    model, optimizer, executor = falling()
    executor(ONE)
    expected, known = -1.0, 1.0
    for rate, is_told in changes:
        optimizer.param_groups[0]["lr"] = rate
        if is_told:
            executor.setOptimizer(optimizer)
            known = rate
        executor(ONE)
        expected -= known
    assert model.weight.item() == expected


EVENTS = ["train", "edit", "to_device", "to_host", "detach", "attach", "load"]


@given(st.lists(st.sampled_from(EVENTS), max_size=10))
@rules
def test_e11_e16_host_and_device_have_weights_of_their_own(events):
    model, _, executor = falling()
    executor(ONE)
    host = device = -1.0
    for event in events:
        if event == "train":
            if not executor.isAttachedToDevice():
                device = host
            executor(ONE)
            device -= 1.0
            host = device
        elif event == "edit":
            with torch.no_grad():
                model.weight.fill_(10.0)
            host = 10.0
        elif event == "to_device":
            executor.copyWeightsToDevice()
            device = host
        elif event == "to_host":
            executor.copyWeightsToHost()
            host = device
        elif event == "detach" and executor.isAttachedToDevice():
            executor.detachFromDevice()
        elif event == "attach" and not executor.isAttachedToDevice():
            executor.attachToDevice()
            device = host
        elif event == "load":
            executor.load_state_dict({"weight": torch.tensor(3.0)})
            host = device = 3.0
        assert model.weight.item() == host
    executor.copyWeightsToHost()
    assert model.weight.item() == device


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(x)
        return self.count


@given(replicas=st.sampled_from([1, 2, 4]), iterations=st.integers(1, 4))
@rules
def test_e12_e22_replicas_count_for_themselves_and_outputs_are_snapshots(replicas, iterations):
    chosen = options(iterations, replicas).broadcastBuffers(False)
    x = torch.arange(1.0, replicas * iterations + 1)
    found = poptorch.inferenceModel(Counter(), chosen)(x)
    assert torch.equal(found.reshape(iterations, replicas), x.reshape(iterations, replicas).cumsum(0))


class Noise(nn.Module):
    def forward(self, x):
        return torch.rand(3) + x


@given(seed=st.integers(0, 2**31), first=st.integers(0, 3), second=st.integers(1, 3), replicas=st.sampled_from([1, 2]))
@rules
def test_e13_random_numbers_follow_seed_and_call_and_can_be_taken_up(seed, first, second, replicas):
    def program():
        return poptorch.inferenceModel(Noise(), options(1, replicas).randomSeed(seed))

    x = torch.zeros(replicas, 1)
    whole = program()
    every = [whole(x) for _ in range(first + second)]
    stopped, resumed = program(), program()
    before = [stopped(x) for _ in range(first)]
    torch.manual_seed(0)
    resumed.rng_state = stopped.rng_state
    after = [resumed(x) for _ in range(second)]
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(0)))
    assert all(map(torch.equal, every, before + after))
    drawn = torch.cat(every).flatten().tolist()
    assert len(set(drawn)) == len(drawn)


@given(failing=st.sets(st.integers(1, 6)))
@rules
def test_e20_calls_fail_when_told_and_compute_nothing(failing):
    model, _, executor = falling()
    with poptorch.injected(fails_on_call=tuple(failing)):
        for number in range(1, 7):
            if number in failing:
                with pytest.raises(poptorch.Error, match="A failure was injected"):
                    executor(ONE)
            else:
                executor(ONE)
    assert model.weight.item() == len(failing) - 6


@given(taken=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=6))
@settings(max_examples=8, deadline=None)
def test_e21_programs_get_the_ipus_that_are_free(taken):
    gc.collect()
    already, held = poptorch.settings.num_ipus - pool.num_free, []
    with poptorch.configured(num_ipus=already + 6):
        for number in taken:
            free = 6 - sum(size for size, _ in held)
            program = poptorch.inferenceModel(Noise(), options(1, number))
            if number <= free:
                program(torch.zeros(number, 1))
                held.append((number, program))
            else:
                with pytest.raises(poptorch.Error, match=rf"Failed to acquire {number} IPU.*of which {free} are free"):
                    program(torch.zeros(number, 1))
                for _, other in held:
                    other.detachFromDevice()
                held = []
    for _, program in held:
        program.destroy()


@given(frozen=st.sets(st.sampled_from(["first", "second"])), num_calls=st.integers(1, 3))
@rules
def test_e23_frozen_weights_stay_and_the_rest_is_trained(frozen, num_calls):
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
        executor(ONE)
    for name in ("first", "second"):
        assert getattr(model, name).item() == (0 if name in frozen else -num_calls)
