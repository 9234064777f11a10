"""What scripts for IPUs pass in, take out and set, beyond the usual."""

import collections
import dataclasses

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch


class Calls(nn.Module):
    """Runs a function as a model."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def infer(function, *args, device_iterations=1, **kwargs):
    options = poptorch.Options().deviceIterations(device_iterations)
    return poptorch.inferenceModel(Calls(function), options)(*args, **kwargs)


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor | None = None


class Bag:
    def __init__(self, tensor):
        self.tensor = tensor


class TestContainers:
    def test_default_dicts_keep_their_default(self):
        found = infer(lambda x: collections.defaultdict(list, a=x + 1), torch.arange(4.0), device_iterations=2)
        assert found["a"].tolist() == [1, 2, 3, 4]
        assert found["b"] == []

    def test_dataclasses_are_cut_and_joined(self):
        found = infer(lambda pair: Pair(pair.first + 1), Pair(torch.arange(4.0)), device_iterations=2)
        assert found.first.tolist() == [1, 2, 3, 4]
        assert found.second is None

    @pytest.mark.parametrize("hides", [Bag, lambda tensor: {tensor}])
    def test_other_objects_with_tensors_are_refused(self, hides):
        with pytest.raises(poptorch.Error, match=r"A (Bag|set) holds tensors, .*registerCustomArgParser"):
            infer(hides, torch.ones(2))
        with pytest.raises(poptorch.Error, match="holds tensors, which a program cannot find"):
            infer(lambda x, bag: x, torch.ones(2), hides(torch.ones(2)))

    def test_results_in_bfloat16_come_back_in_single_precision(self):
        assert infer(lambda x: x.bfloat16(), torch.ones(2)).dtype is torch.float32


def test_defaults_may_be_given_or_left_out():
    program = poptorch.inferenceModel(Calls(lambda x, y=None, scale=2: x * scale if y is None else y))
    for args, kwargs in ((), {}), ((None,), {}), ((), {"y": None, "scale": 2}), ((None, 2), {}):
        assert program(torch.ones(2), *args, **kwargs).tolist() == [2, 2]
    with pytest.raises(poptorch.Error, match=r"expected \['x'\] but got \['x', 'y'\]"):
        program(torch.ones(2), torch.ones(2))


def test_a_block_goes_on_after_one_inside_of_it():
    visited = []

    def forward(x):
        with poptorch.Block("outer", ipu_id=0):
            x = x + 1
            with poptorch.Block("inner", ipu_id=1):
                x = x * 2
            visited.append(None)
            return x + 1

    program = poptorch.inferenceModel(Calls(forward), poptorch.Options().deviceIterations(3))
    assert program(torch.ones(3)).tolist() == [5, 5, 5]
    assert program.compiled.num_stages == 3


@pytest.mark.parametrize("strict", [False, True])
def test_operations_of_the_host_may_use_numpy(strict):
    operation = poptorch.CPU(lambda x: torch.from_numpy(x.numpy() * 2), "double")
    with poptorch.configured(strict=strict):
        assert infer(lambda x: operation(x) + 1, torch.ones(2)).tolist() == [3, 3]


class TestOptions:
    def test_setters_of_older_and_newer_scripts(self):
        options = poptorch.Options().maxRepeatLogs(3).relaxOptimizerAttributesChecks().disableModuleNamescope()
        options.sourceLocationExcludes(["a"]).appendToLocationExcludes("b")
        options.Jit.traceModel(True)
        assert (options.max_repeat_logs, options.relax_optimizer_checks) == (3, True)
        assert options.source_location_excludes == ["a", "b"]

    @pytest.mark.parametrize(("setter", "value"), [("modelName", 3), ("logDir", 3), ("sourceLocationExcludes", "a")])
    def test_values_of_another_type_are_refused(self, setter, value):
        with pytest.raises(AssertionError, match=f"{setter} must be of type"):
            getattr(poptorch.Options(), setter)(value)


class TestNames:
    def test_convolutions_at_once_are_those_one_by_one(self):
        layer = nn.Conv1d(2, 3, 2)
        plan = poptorch.MultiConv().availableMemoryProportions([0.2, 0.3]).partialsTypes(torch.half)
        plan.planType(poptorch.MultiConvPlanType.Parallel).perConvReservedTiles(50).cycleBackOff(0.1)
        plan.enableConvDithering(True)
        x = torch.ones(1, 2, 4)
        with plan, poptorch.NameScope("convolutions"):
            assert torch.equal(layer(x), layer(x))
        with pytest.raises(AssertionError, match="partialsTypes takes"):
            plan.partialsTypes("half")
        with pytest.raises(AssertionError, match="planType must be of type MultiConvPlanType"):
            plan.planType(0)
        assert poptorch.hasMLIRSupportOnPlatform() is False

    def test_nearest_of_the_same_example(self):
        x, y = torch.tensor([[0.0], [5.0], [5.0]]), torch.tensor([[1.0], [4.0], [9.0]])
        assert poptorch.nearest(x, y).tolist() == [0, 1, 1]
        assert poptorch.nearest(x, y, torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1])).tolist() == [0, 1, 2]

    def test_samples_of_points_are_spread_out(self):
        points = torch.tensor([[0.0], [1.0], [9.0], [4.0], [0.0], [2.0]])
        assert poptorch.fps(points, [0, 4, 6], ratio=0.5).tolist() == [0, 2, 4]
        assert poptorch.fps(torch.arange(30.0)[:, None], [0, 30], ratio=0.1).tolist() == [0, 29, 14]
        assert len(poptorch.fps(points, [0, 6], random_start=True)) == 3
