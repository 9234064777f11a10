"""The device has weights, random numbers and IPUs of its own."""

import gc

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, largest_difference, one_free_ipu, options, weights

BATCH = batches(1, 4, torch.float32)[0]


def trained(model=None, optimizer=None, chosen=None):
    model = model or Perceptron()
    optimizer = optimizer or poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, chosen, optimizer)
    executor(*BATCH)
    return executor


@pytest.fixture(autouse=True)
def ipus_are_given_back():
    yield
    gc.collect()


class TestWeights:
    def test_are_on_the_host_after_every_training_call(self):
        executor = trained()
        assert largest_difference(weights(executor.model), weights(Perceptron())) > 0

    def test_changed_on_the_host_are_not_seen_until_they_are_copied(self):
        model = Perceptron()
        executor = poptorch.inferenceModel(model)
        first = executor(BATCH[0])
        with torch.no_grad():
            model.second.bias.add_(1.0)
        assert torch.equal(executor(BATCH[0]), first)
        executor.copyWeightsToDevice()
        assert torch.allclose(executor(BATCH[0]), first + 1.0)

    def test_changed_on_the_host_are_overwritten_by_the_next_training_call(self):
        changed, untouched = trained(), trained()
        with torch.no_grad():
            changed.model.second.bias.add_(100.0)
        changed(*BATCH)
        untouched(*BATCH)
        assert largest_difference(weights(changed.model), weights(untouched.model)) == 0

    def test_changed_on_the_host_stay_when_the_program_is_detached(self):
        executor = trained()
        with torch.no_grad():
            executor.model.second.bias.fill_(5.0)
        executor.detachFromDevice()
        assert executor.model.second.bias.tolist() == [5.0, 5.0]
        executor.attachToDevice()
        executor.copyWeightsToHost()
        assert executor.model.second.bias.tolist() == [5.0, 5.0]

    def test_loaded_through_the_executor_reach_the_device(self):
        executor = trained()
        executor.load_state_dict(Perceptron().state_dict())
        executor.copyWeightsToHost()
        assert largest_difference(weights(executor.model), weights(Perceptron())) == 0

    def test_that_another_executor_trained_are_read_anew(self):
        model = Perceptron()
        reader = poptorch.inferenceModel(model)
        before = reader(BATCH[0])
        executor = trained(model)
        assert not torch.equal(reader(BATCH[0]), before)
        executor(*BATCH)
        assert torch.equal(reader(BATCH[0]), model(BATCH[0]))

    def test_cannot_be_copied_before_compilation(self):
        for copy in ("copyWeightsToHost", "copyWeightsToDevice"):
            with pytest.raises(poptorch.Error, match="not compiled yet"):
                getattr(poptorch.trainingModel(Perceptron()), copy)()

    def test_of_a_model_are_trained_by_one_executor_at_a_time(self):
        executor = trained()
        with pytest.raises(RuntimeError, match=r"already been wrapped in 'poptorch.trainingModel'"):
            poptorch.trainingModel(executor.model)
        executor.destroy()
        poptorch.trainingModel(executor.model)

    def test_reached_through_closures_are_the_devices(self):
        class Closure(nn.Module):
            def __init__(self):
                super().__init__()
                inner = nn.Linear(3, 2)
                self.inner = inner
                self.apply_inner = lambda x: inner(x)

            def forward(self, x, labels):
                return nn.functional.mse_loss(self.apply_inner(x), labels)

        model = Closure()
        before = model.inner.weight.clone()
        executor = poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=0.1))
        losses = [float(executor(*BATCH)) for _ in range(3)]
        assert losses == sorted(losses, reverse=True)
        assert not torch.equal(before, model.inner.weight)

    def test_gradients_of_the_host_are_left_alone(self):
        model = Perceptron()
        model.first.weight.grad = torch.ones_like(model.first.weight)
        trained(model)
        assert model.first.weight.grad.sum() == model.first.weight.numel()
        assert model.second.weight.grad is None


class TestBuffers:
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x, labels):
            self.seen.add_(len(x))
            return nn.functional.mse_loss(self.linear(x), labels), self.seen

    def test_come_back_with_the_weights(self):
        model = self.Counter()
        poptorch.trainingModel(model, options(2))(*BATCH)
        assert model.seen == 4

    def test_that_change_cannot_be_shared_by_replicas(self):
        with pytest.raises(poptorch.Error, match=r"does not support broadcasting buffers.*\(seen\)"):
            poptorch.trainingModel(self.Counter(), options(1, 2))(*BATCH)

    def test_that_change_are_each_replicas_own(self):
        chosen = options(2, 2, output=poptorch.OutputMode.All).broadcastBuffers(False)
        model = self.Counter()
        _, seen = poptorch.trainingModel(model, chosen)(*BATCH)
        assert seen.tolist() == [1, 1, 2, 2]
        assert model.seen == 2

    def test_cannot_be_other_tensors(self):
        class Reassigning(self.Counter):
            def forward(self, x, labels):
                self.seen = self.seen + 1
                return nn.functional.mse_loss(self.linear(x), labels)

        with pytest.raises(poptorch.Error, match="Buffer seen is reassigned within the model"):
            poptorch.trainingModel(Reassigning())(*BATCH)

    def test_that_are_named_can_be_uploaded_alone(self):
        model = self.Counter()
        chosen = poptorch.Options().updatableNamedBuffers(["seen"])
        executor = poptorch.inferenceModel(model, chosen)
        executor(*BATCH)
        model.seen.fill_(100)
        model.linear.weight.data.fill_(100)
        before = executor(*BATCH)[0]
        executor.copyNamedBuffersToDevice()
        loss, seen = executor(*BATCH)
        assert seen == 104
        assert loss == before


class TestRandomness:
    def losses(self, executor, number=3):
        return [float(executor(*BATCH)[1]) for _ in range(number)]

    def executor(self, seed=5):
        chosen = options(2, output=poptorch.OutputMode.All).randomSeed(seed)
        model = Perceptron(dropout=0.5)
        frozen = poptorch.optim.SGD(model.parameters(), lr=0.0)
        return poptorch.trainingModel(model, poptorch_mean(chosen), frozen)

    def test_of_the_host_is_not_consumed(self):
        executor = self.executor()
        executor(*BATCH)
        torch.manual_seed(0)
        before = torch.get_rng_state()
        executor(*BATCH)
        assert torch.equal(before, torch.get_rng_state())

    def test_does_not_depend_on_the_hosts(self):
        first = self.executor()
        torch.manual_seed(1)
        second = self.executor()
        torch.manual_seed(2)
        assert self.losses(first) == self.losses(second)

    def test_differs_by_seed_call_and_replica(self):
        one, other = self.losses(self.executor(5)), self.losses(self.executor(6))
        assert len({*one, *other}) == 6

        class Drop(nn.Module):
            def forward(self, x):
                return nn.functional.dropout(x, training=True)

        found = poptorch.inferenceModel(Drop(), options(1, 2))(torch.ones(2, 32))
        assert not torch.equal(found[0], found[1])

    def test_goes_on_from_its_state(self):
        whole = self.losses(self.executor(), 4)
        first = self.executor()
        assert self.losses(first, 2) == whole[:2]
        second = self.executor()
        second.rng_state = first.rng_state
        assert self.losses(second, 2) == whole[2:]

    def test_seeding_the_options_seeds_the_host(self):
        poptorch.Options().randomSeed(9)
        drawn = torch.rand(1)
        torch.manual_seed(9)
        assert torch.equal(drawn, torch.rand(1))


def poptorch_mean(chosen):
    chosen.outputMode(poptorch.OutputMode.Final)
    return chosen


class TestAttachment:
    def test_before_compilation_is_refused(self):
        executor = poptorch.trainingModel(Perceptron())
        assert not executor.isCompiled()
        with pytest.raises(poptorch.Error, match="not compiled yet"):
            executor.attachToDevice()
        with pytest.raises(poptorch.Error, match="not compiled yet"):
            executor.detachFromDevice()

    def test_is_told_apart(self):
        executor = trained()
        assert executor.isAttachedToDevice()
        with pytest.raises(poptorch.Error, match="Device is already attached"):
            executor.attachToDevice()
        executor.detachFromDevice()
        assert not executor.isAttachedToDevice()
        with pytest.raises(poptorch.Error, match="Device is not attached"):
            executor.detachFromDevice()

    def test_takes_ipus_that_others_miss(self):
        with one_free_ipu():
            first = trained()
            second = poptorch.inferenceModel(Perceptron())
            with pytest.raises(poptorch.Error, match=r"Failed to acquire 1 IPU"):
                second(BATCH[0])
            first.detachFromDevice()
            second(BATCH[0])

    def test_offline_programs_do_not_run(self):
        executor = poptorch.trainingModel(Perceptron(), poptorch.Options().useOfflineIpuTarget())
        executor.compile(*BATCH)
        assert executor.isCompiled()
        with pytest.raises(AssertionError, match="offline device"):
            executor(*BATCH)

    def test_the_number_of_ipus_is_a_power_of_two(self):
        with pytest.raises(poptorch.Error, match=r"has to be a power of two.*autoRoundNumIPUs\(True\) to take 4"):
            poptorch.inferenceModel(Perceptron(), options(1, 3))(torch.ones(3, 3))
        executor = poptorch.inferenceModel(Perceptron(), options(1, 3).autoRoundNumIPUs())
        executor(torch.ones(3, 3))
        assert executor.compiled.num_ipus == 4

    def test_no_machine_has_more_than_64(self):
        with pytest.raises(poptorch.Error, match="needs 128 IPUs"):
            poptorch.inferenceModel(Perceptron(), options(1, 128))(torch.ones(128, 3))


class TestCompiledPython:
    def test_modes_children_and_hooks_are_those_of_compilation(self):
        model = Perceptron(dropout=0.9)
        executor = poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=0.0))
        executor.model.eval()
        exact = float(executor(*BATCH)[1])
        model.train()
        replaced = model.second
        model.second = nn.Linear(8, 2)
        model.first.register_forward_hook(lambda *_: 1 / 0)
        assert float(executor(*BATCH)[1]) == exact
        assert model.training
        assert model.second is not replaced
        assert len(model.first._forward_hooks) == 1


class TestReplicaGroups:
    def test_each_group_has_its_own_value(self):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.tensor([[1.0], [2.0]]))

            def forward(self, x, labels):
                out = x * self.scale
                return out, nn.functional.mse_loss(out, labels)

        model = Scale()
        chosen = options(1, 4, output=poptorch.OutputMode.All)
        executor = poptorch.trainingModel(model, chosen, poptorch.optim.SGD(model.parameters(), lr=0.5))
        model.scale.replicaGrouping(poptorch.CommGroupType.Consecutive, 2, poptorch.VariableRetrievalMode.OnePerGroup)
        out, _ = executor(torch.ones(4, 1), torch.zeros(4, 1))
        assert out.flatten().tolist() == [1, 1, 2, 2]
        # The gradient of s^2 is 2s, halved by the rate: each value falls to zero by its own gradient.
        assert model.scale.flatten().tolist() == [0, 0]

    def test_groups_divide_the_replicas(self):
        model = Perceptron()
        executor = poptorch.trainingModel(model, options(1, 2))
        model.first.bias.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0)
        with pytest.raises(poptorch.Error, match=r"needs a first dimension of 2; its shape is \(8,\)"):
            executor(*BATCH)
