"""What a program has on the device: buffers, replica groups, the compiled structure."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, options

rules = settings(max_examples=25, deadline=None)

BATCH = batches(1, 4, torch.float32)[0]


class TestBuffers:
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x, labels):
            self.seen.add_(len(x))
            return nn.functional.mse_loss(self.linear(x), labels), self.seen

    def test_replicas_change_their_own_buffers(self):
        chosen = options(2, 2, output=poptorch.OutputMode.All).broadcastBuffers(False)
        model = self.Counter()
        _, seen = poptorch.trainingModel(model, chosen)(*BATCH)
        assert seen.tolist() == [1, 1, 2, 2]
        assert model.seen == 2

    def test_named_buffers_can_be_uploaded_separately(self):
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


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(x)
        return self.count


@given(replicas=st.sampled_from([1, 2, 4]), iterations=st.integers(1, 4))
@rules
def test_buffers_of_each_replica_count_its_micro_batches(replicas, iterations):
    chosen = options(iterations, replicas).broadcastBuffers(False)
    x = torch.arange(1.0, replicas * iterations + 1)
    found = poptorch.inferenceModel(Counter(), chosen)(x)
    assert torch.equal(found.reshape(iterations, replicas), x.reshape(iterations, replicas).cumsum(0))


CHANGES = {
    "mode": lambda model: model.train(),
    "hook": lambda model: model.first.register_forward_hook(lambda *_: torch.zeros(2, 8)),
    "pre_hook": lambda model: model.second.register_forward_pre_hook(lambda *_: (torch.zeros(2, 8),)),
    "child": lambda model: setattr(model, "second", nn.Linear(8, 2)),
    "class": lambda model: setattr(model.first, "__class__", nn.Identity),
}


def structure(model):
    return [(type(part), part.training, dict(part._modules), dict(part._forward_hooks)) for part in model.modules()]


@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=4))
@rules
def test_any_later_changes_of_the_structure_are_ignored(names):
    model = Perceptron(dropout=0.9).eval()
    executor = poptorch.inferenceModel(model)
    before = executor(BATCH[0])
    for name in names:
        CHANGES[name](model)
    changed = structure(model)
    assert torch.equal(executor(BATCH[0]), before)
    assert structure(model) == changed


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
