"""Error messages of `poptorch` that users may match, each raised by its cause."""

import re

import pytest
import torch
from torch.nn import functional

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, options

X, LABELS = batches(1, 2, torch.float32)[0]


class Model(Perceptron):
    """A perceptron with a custom forward pass."""

    def __init__(self, forward):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.run = forward

    def forward(self, *args):
        return self.run(self, *args)


def train(forward=None, chosen=None):
    executor = poptorch.trainingModel(Perceptron() if forward is None else Model(forward), chosen)
    executor(X, LABELS)
    return executor


def infer(x, chosen=None):
    executor = poptorch.inferenceModel(Model(lambda self, x: x), chosen)
    executor(x)
    return executor


def loss(self, x, labels):
    return functional.mse_loss(self.second(self.first(x)), labels)


def reassigning(self, x, labels):
    self.seen = self.seen + 1
    return loss(self, x, labels)


def counting(self, x, labels):
    self.seen.add_(1)
    return loss(self, x, labels)


def leaving(self, x, labels):
    with poptorch.Block("a", ipu_id=0):
        hidden = self.first(x)
    return functional.mse_loss(self.second(hidden), labels)


def accumulating_inference():
    poptorch.inferenceModel(Perceptron(), options(accumulation=2))


def wrapped_twice():
    model = Perceptron()
    first = poptorch.trainingModel(model)
    assert poptorch.trainingModel(model) is not first


def sgd():
    return poptorch.optim.SGD(Perceptron().parameters(), lr=0.1)


def loader(**changes):
    return poptorch.DataLoader(poptorch.Options(), list(range(4)), **changes)


Rebatched = poptorch.DataLoaderMode.AsyncRebatched
NO_REDUCTION = poptorch.ReductionType.NoReduction
SITUATIONS = [
    (
        poptorch.Error,
        "Training.gradientAccumulation to 1 or leave it as its default value (1)",
        accumulating_inference,
    ),
    (RuntimeError, "Model has already been wrapped in 'poptorch.trainingModel'.", wrapped_twice),
    (
        AssertionError,
        "Invalid batch dimension: In the input args[0], the batch dimension (2) must be a multiple of "
        "Options.deviceIterations(3) *",
        lambda: infer(X, options(3)),
    ),
    (poptorch.Error, "requires_grad", lambda: infer(X.clone().requires_grad_())),
    (poptorch.Error, "Device is already attached", lambda: infer(X).attachToDevice()),
    (poptorch.Error, "Device is not attached", lambda: [e := infer(X), e.detachFromDevice(), e.detachFromDevice()]),
    (
        poptorch.Error,
        "backward() cannot be called explicitly on outputs of a PopTorch model",
        lambda: train()(X, LABELS)[1].backward(),
    ),
    (poptorch.Error, "Buffer seen is reassigned within the model when running on the IPU", lambda: train(reassigning)),
    (poptorch.Error, "PopTorch does not support broadcasting buffers", lambda: train(counting, options(1, 2))),
    (
        ValueError,
        "NoReduction",
        lambda: poptorch.Options().Training.accumulationAndReplicationReductionType(NO_REDUCTION),
    ),
    (AssertionError, "An output mode must be picked", lambda: poptorch.Options().toDict()),
    (AssertionError, "Unknown attribute", lambda: sgd().variable_attrs.markAsConstant("betas")),
    (ValueError, "amsgrad", lambda: poptorch.optim.Adam(Perceptron().parameters(), lr=1.0, amsgrad=True)),
    (
        RuntimeError,
        "Only IPU optimizer states can be loaded onto the IPU.",
        lambda: sgd().load_state_dict({"state": {}, "param_groups": []}),
    ),
    (
        RuntimeError,
        "Cannot load optimizer state dictionary because it is empty.",
        lambda: sgd().load_state_dict(sgd().state_dict()),
    ),
    (poptorch.Error, "No active Block, all the ops must belong to a Block", lambda: train(leaving)),
    (
        poptorch.Error,
        "batch_sampler is mutually exclusive with batch_size",
        lambda: loader(batch_sampler=[[0]], batch_size=2),
    ),
    (AssertionError, "rebatched_size", lambda: loader(mode=Rebatched, async_options={"rebatched_size": 1})),
]


@pytest.mark.parametrize(("kind", "quoted", "situation"), SITUATIONS, ids=[quoted[:40] for _, quoted, _ in SITUATIONS])
def test_messages_are_those_of_poptorch(kind, quoted, situation):
    with pytest.raises(kind, match=re.escape(quoted)):
        situation()
