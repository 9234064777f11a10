"""Scripts for `poptorch`, as its documentation has them, through ``install()``."""

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import poptorch_emulator as emulator
from emulator_peers import Perceptron, batches, options

BATCH = batches(1, 2, torch.float32)[0]


@pytest.fixture
def poptorch():
    with emulator.installed():
        import poptorch

        yield poptorch


def test_a_model_knows_that_it_runs_on_an_ipu(poptorch):
    seen = []

    class Model(Perceptron):
        def forward(self, x, labels=None):
            seen.append(poptorch.isRunningOnIpu())
            return super().forward(x, labels)

    model = Model()
    executor = poptorch.inferenceModel(model, options(2))
    executor(BATCH[0])
    executor(BATCH[0])
    model(BATCH[0])
    # Once to compile, twice for each call, and once on the host.
    assert seen == [True] * 5 + [False]


class TestTimes:
    def test_are_those_of_the_last_call(self, poptorch):
        executor = poptorch.inferenceModel(Perceptron(), poptorch.Options().logCycleCount(True))
        executor(BATCH[0])
        least, most, mean = executor.getLatency()
        assert 0 < least <= mean <= most
        assert executor.getComputeLatency() == executor.getLatency()
        assert executor.getHostIpuLatency() == executor.getIpuHostLatency() == (0, 0, 0)
        assert executor.cycleCount() > 0
        counters = executor.getPerfCounters()
        assert counters["output_complete"][0][0] - counters["input"][0][0] == pytest.approx(mean)

    def test_are_there_after_a_call_only(self, poptorch):
        executor = poptorch.inferenceModel(Perceptron())
        with pytest.raises(poptorch.Error, match="has not been run yet"):
            executor.getLatency()

    def test_are_counted_in_cycles_when_asked_to(self, poptorch):
        executor = poptorch.inferenceModel(Perceptron())
        executor(BATCH[0])
        with pytest.raises(AssertionError, match="Cycle count logging is disabled"):
            executor.cycleCount()


class TestDestroy:
    def test_is_a_method_of_the_model_too(self, poptorch):
        model = Perceptron()
        executor = poptorch.trainingModel(model)
        executor(*BATCH)
        model.destroy()
        assert not executor.isCompiled()
        assert not hasattr(model, "destroy")
        poptorch.trainingModel(model)(*BATCH)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_does_not_follow_copies(self, poptorch, copied):
        model = Perceptron()
        executor = poptorch.trainingModel(model)
        executor(*BATCH)
        copied(model).destroy()
        assert executor.isCompiled()


@dataclass
class Pair:
    x: torch.Tensor
    scale: torch.Tensor


class PairParser(emulator.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x
        yield struct.scale

    def reconstruct(self, original_structure, tensor_iterator):
        return Pair(next(tensor_iterator), next(tensor_iterator))


class TestOwnClasses:
    class Model(nn.Module):
        def forward(self, pair):
            return Pair(pair.x * pair.scale, pair.scale)

    @pytest.fixture
    def executor(self, poptorch):
        poptorch.registerCustomArgParser(Pair, PairParser())
        return poptorch.inferenceModel(self.Model(), options(2))

    def test_are_cut_and_joined_like_others(self, executor):
        found = executor(Pair(torch.arange(4.0), torch.tensor([1.0, 1.0, 10.0, 10.0])))
        assert found.x.tolist() == [0, 1, 20, 30]

    def test_are_checked_like_others(self, poptorch, executor):
        executor(Pair(torch.arange(4.0), torch.ones(4)))
        with pytest.raises(poptorch.Error, match=r"Shape mismatch for pair\[0\]: expected \[4\] but got \[2\]"):
            executor(Pair(torch.arange(2.0), torch.ones(4)))
        with pytest.raises(AssertionError, match=r"In the input pair\[1\], the batch dimension \(3\)"):
            executor(Pair(torch.arange(4.0), torch.ones(3)))


def test_an_optimizer_may_be_replaced_between_calls(poptorch):
    model = Perceptron()
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    executor(*BATCH)
    before = model.first.weight.clone()
    executor.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9))
    executor(*BATCH)
    assert torch.equal(before, model.first.weight)


def test_arguments_by_name_position_and_default(poptorch):
    class Model(Perceptron):
        def forward(self, x, *more, factor=1, mask=None, **named):
            out = super().forward(x) * factor + sum(more)
            return out if mask is None else out * mask + named["shift"]

    executor = poptorch.inferenceModel(Model())
    plain = executor(BATCH[0], torch.ones(2, 2))
    assert torch.equal(executor(BATCH[0], torch.ones(2, 2)), plain)
    named = poptorch.inferenceModel(Model())
    arguments = {"factor": 2, "mask": torch.ones(2, 1), "shift": torch.ones(2, 1)}
    assert torch.allclose(named(BATCH[0], torch.ones(2, 2), **arguments), (plain - 1) * 2 + 2, atol=1e-6)


@pytest.mark.parametrize("mode", list(emulator.DataLoaderMode))
def test_loaders_feed_programs(poptorch, mode):
    data = torch.utils.data.TensorDataset(torch.arange(30.0).reshape(10, 3))
    chosen = options(2)
    loader = poptorch.DataLoader(chosen, data, batch_size=2, mode=mode)
    executor = poptorch.inferenceModel(Perceptron(), chosen)
    found = torch.cat([executor(x) for (x,) in loader])
    loader.terminate()
    assert torch.allclose(found, Perceptron()(data.tensors[0][:8]), atol=1e-6)
