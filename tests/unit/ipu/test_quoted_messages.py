"""Error messages of `poptorch` and optimum-graphcore that users may match, each raised by its cause."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import poptorch_emulator as poptorch
import portico
from emulator_peers import Perceptron, batches, free_ipus, options
from ipu_trainers import Sentences, classifier, ipu_arguments, ipu_trainer
from portico.ipu.config import IncompatibleIPUConfigError, IPUConfig

X, LABELS = batches(1, 2, torch.float32)[0]
WHY = "This error occurred because the inputs passed at runtime don't match the inputs used to compile the model"


class Model(Perceptron):
    """A perceptron with a custom forward pass."""

    def __init__(self, forward):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.run = forward

    def forward(self, *args):
        return self.run(self, *args)


def train(forward=None, chosen=None, optimizer=None, x=X):
    model = Perceptron() if forward is None else Model(forward)
    executor = poptorch.trainingModel(model, chosen, optimizer and optimizer(model.parameters()))
    executor(x, LABELS)
    return executor


def infer(first, then=None, chosen=None):
    executor = poptorch.inferenceModel(Model(lambda self, x: x), chosen)
    executor(first)
    return executor if then is None else executor(then)


def loss(self, x, labels):
    return functional.mse_loss(self.second(self.first(x)), labels)


def two_losses(self, x, labels):
    return loss(self, x, labels) + functional.l1_loss(self.first(x), self.first(x) * 2)


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


def pipeline(ga=1):
    model = Perceptron()
    poptorch.BeginBlock(model.first, ipu_id=0)
    poptorch.BeginBlock(model.second, ipu_id=1)
    poptorch.trainingModel(model, options(accumulation=ga))(X[:ga], LABELS[:ga])


def blocks_twice():
    layer = nn.Linear(1, 1)
    poptorch.BeginBlock(poptorch.BeginBlock(layer))


def acquiring():
    with free_ipus(1):
        infer(X, chosen=options(1, 2))


def frozen():
    chosen = poptorch.Options()
    poptorch.inferenceModel(Perceptron(), chosen)
    chosen.deviceIterations(3)


def offline():
    infer(X, chosen=poptorch.Options().useOfflineIpuTarget())


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
POPTORCH = [
    (
        poptorch.Error,
        "Multiple independent losses found in graph. Graph must have one final loss.",
        lambda: train(two_losses),
    ),
    (poptorch.Error, "Wrap final graph loss in poptorch.identity_loss.", lambda: train(two_losses)),
    (poptorch.Error, "Couldn't find a loss in graph!", lambda: train(lambda self, x, labels: self.first(x))),
    (
        poptorch.Error,
        "Training.gradientAccumulation to 1 or leave it as its default value (1)",
        accumulating_inference,
    ),
    (RuntimeError, "Model has already been wrapped in 'poptorch.trainingModel'.", wrapped_twice),
    (poptorch.Error, "Shape mismatch for args[0]: expected [2, 3] but got [1, 3]", lambda: infer(X, X[:1])),
    (poptorch.Error, "Data type mismatch for args[0]", lambda: infer(X, X.int())),
    (poptorch.Error, "Type mismatch for args[0]", lambda: infer(X, [X])),
    (poptorch.Error, "Length mismatch for args[0]", lambda: infer([X], [X, X])),
    (poptorch.Error, "Keys mismatch for args[0]", lambda: infer({"a": X}, {"b": X})),
    (poptorch.Error, "Value mismatch for args[0]", lambda: infer(1, 2)),
    (poptorch.Error, WHY, lambda: infer(X, X[:1])),
    (
        AssertionError,
        "Invalid batch dimension: In the input args[0], the batch dimension (2) must be a multiple of "
        "Options.deviceIterations(3) *",
        lambda: infer(X, chosen=options(3)),
    ),
    (poptorch.Error, "requires_grad", lambda: infer(X.clone().requires_grad_())),
    (poptorch.Error, "Device is already attached", lambda: infer(X).attachToDevice()),
    (poptorch.Error, "Device is not attached", lambda: [e := infer(X), e.detachFromDevice(), e.detachFromDevice()]),
    (poptorch.Error, "not compiled", lambda: poptorch.inferenceModel(Perceptron()).attachToDevice()),
    (AssertionError, "Trying to run a model on an offline device (ConnectionType.Never)", offline),
    (
        poptorch.Error,
        "backward() cannot be called explicitly on outputs of a PopTorch model",
        lambda: train()(X, LABELS)[1].backward(),
    ),
    (poptorch.Error, "Buffer seen is reassigned within the model when running on the IPU", lambda: train(reassigning)),
    (poptorch.Error, "PopTorch does not support broadcasting buffers", lambda: train(counting, options(1, 2))),
    (AttributeError, "Can't modify frozen Options", frozen),
    (AssertionError, "IPU0", lambda: poptorch.Options().setAvailableMemoryProportion({"0": 0.1})),
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
    (
        poptorch.Error,
        "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of "
        "pipeline stages (3) when using poptorch.PipelinedExecution. Please note that a model with 2 pipeline stages "
        "in PopTorch will have an additional 1 stages when training.",
        pipeline,
    ),
    (poptorch.Error, "module has already been assigned to a block.", blocks_twice),
    (poptorch.Error, "No active Block, all the ops must belong to a Block", lambda: train(leaving)),
    (poptorch.Error, "Failed to acquire", acquiring),
    (
        poptorch.Error,
        "batch_sampler is mutually exclusive with batch_size",
        lambda: loader(batch_sampler=[[0]], batch_size=2),
    ),
    (AssertionError, "rebatched_size", lambda: loader(mode=Rebatched, async_options={"rebatched_size": 1})),
    (AssertionError, "rebatched_worker_size", lambda: loader(mode=Rebatched, rebatched_worker_size=2)),
]
SPLITS = "serialized_embedding_splits_per_ipu"
CONFIG = [
    (TypeError, "Setting `IPUConfig` attribute: `seed`", lambda: IPUConfig(seed="a")),
    (ValueError, "must be >= 1", lambda: IPUConfig(replication_factor=0)),
    (ValueError, "must have all elements >= -1", lambda: IPUConfig(layers_per_ipu=[-2])),
    (ValueError, "must have atleast 1 split", lambda: IPUConfig(layers_per_ipu=[1, 1], **{SPLITS: [0, 0]})),
    (
        ValueError,
        "must have its splits on consecutive IPUs",
        lambda: IPUConfig(layers_per_ipu=[1] * 3, **{SPLITS: [1, 0, 1]}),
    ),
    (ValueError, "`IPUConfig` mode can only take values in", lambda: setattr(IPUConfig(), "mode", "test")),
    (ValueError, "Key speed isn't in the original config dict", lambda: IPUConfig().update_from_string("speed=1")),
    (IncompatibleIPUConfigError, "speed", lambda: IPUConfig(speed=1)),
    (
        IncompatibleIPUConfigError,
        "has a non-default value set, but its length does not match",
        lambda: IPUConfig(layers_per_ipu=[1], ipus_per_replica=2),
    ),
]
TRAINER = [
    (
        RuntimeError,
        "`model_init` is not supported by `IPUTrainer` yet",
        lambda d: portico.IPUTrainer(model_init=classifier, args=ipu_arguments(d)),
    ),
    (
        ValueError,
        "Hyperparameter tuning is not supported by the IPUTrainer.",
        lambda d: ipu_trainer(d).train(trial={}),
    ),
    (KeyError, "Could not find a PopTorch counterpart for optimizer Adagrad", lambda d: with_adagrad(d)),
    (
        ValueError,
        "Couldn't get first sample from dataloader",
        lambda d: ipu_trainer(d, parts={"train_dataset": Sentences(1)}).train(),
    ),
    (
        ValueError,
        "No valid checkpoint found in output directory",
        lambda d: ipu_trainer(d).train(resume_from_checkpoint=True),
    ),
    (
        ValueError,
        "Can't find a valid checkpoint at",
        lambda d: ipu_trainer(d).train(resume_from_checkpoint=str(d / "none")),
    ),
    (
        IncompatibleIPUConfigError,
        "layers_per_ipu does not define the correct number of layers for the current model",
        lambda d: ipu_trainer(d, IPUConfig(layers_per_ipu=[3, 3], gradient_accumulation_steps=3)).train(),
    ),
]


def with_adagrad(folder):
    model = classifier()
    ipu_trainer(folder, None, model, parts={"optimizers": (torch.optim.Adagrad(model.parameters()), None)})


def names(rows):
    return [quoted[:40] for _, quoted, _ in rows]


@pytest.mark.parametrize(("kind", "quoted", "situation"), POPTORCH + CONFIG, ids=names(POPTORCH + CONFIG))
def test_messages_of_poptorch_and_config(kind, quoted, situation):
    with pytest.raises(kind, match=re.escape(quoted)):
        situation()


@pytest.mark.parametrize(("kind", "quoted", "situation"), TRAINER, ids=names(TRAINER))
def test_messages_of_the_trainer(tmp_path, kind, quoted, situation):
    with pytest.raises(kind, match=re.escape(quoted)):
        situation(tmp_path)
