"""Containers and the user's own classes as arguments and results."""

import collections
import dataclasses

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import infer, options


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor | None = None


class Bag:
    def __init__(self, tensor):
        self.tensor = tensor


class TestContainers:
    def test_default_dicts_keep_their_factory(self):
        found = infer(lambda x: collections.defaultdict(list, a=x + 1), torch.arange(4.0), device_iterations=2)
        assert found["a"].tolist() == [1, 2, 3, 4]
        assert found["b"] == []

    def test_dataclasses_are_cut_and_joined(self):
        found = infer(lambda pair: Pair(pair.first + 1), Pair(torch.arange(4.0)), device_iterations=2)
        assert found.first.tolist() == [1, 2, 3, 4]
        assert found.second is None

    @pytest.mark.parametrize("hides", [Bag, lambda tensor: {tensor}])
    def test_unknown_objects_that_hold_tensors_are_refused(self, hides):
        with pytest.raises(poptorch.Error, match=r"A (Bag|set) holds tensors, .*registerCustomArgParser"):
            infer(hides, torch.ones(2))
        with pytest.raises(poptorch.Error, match="holds tensors, which a program cannot find"):
            infer(lambda x, bag: x, torch.ones(2), hides(torch.ones(2)))

    def test_bfloat16_results_become_single_precision(self):
        assert infer(lambda x: x.bfloat16(), torch.ones(2)).dtype is torch.float32


@dataclasses.dataclass
class Scaled:
    x: torch.Tensor
    scale: torch.Tensor


class ScaledParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x
        yield struct.scale

    def reconstruct(self, original_structure, tensor_iterator):
        return Scaled(next(tensor_iterator), next(tensor_iterator))


class TestRegisteredClasses:
    class Model(nn.Module):
        def forward(self, pair):
            return Scaled(pair.x * pair.scale, pair.scale)

    @pytest.fixture
    def executor(self):
        poptorch.registerCustomArgParser(Scaled, ScaledParser())
        return poptorch.inferenceModel(self.Model(), options(2))

    def test_registered_classes_are_cut_and_joined(self, executor):
        found = executor(Scaled(torch.arange(4.0), torch.tensor([1.0, 1.0, 10.0, 10.0])))
        assert found.x.tolist() == [0, 1, 20, 30]

    def test_registered_classes_are_checked(self, executor):
        executor(Scaled(torch.arange(4.0), torch.ones(4)))
        with pytest.raises(poptorch.Error, match=r"Shape mismatch for pair\[0\]: expected \[4\] but got \[2\]"):
            executor(Scaled(torch.arange(2.0), torch.ones(4)))
        with pytest.raises(AssertionError, match=r"In the input pair\[1\], the batch dimension \(3\)"):
            executor(Scaled(torch.arange(4.0), torch.ones(3)))
