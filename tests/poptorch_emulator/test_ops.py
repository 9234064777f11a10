"""Results of the operations."""

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, infer, options

X = torch.arange(6.0).reshape(2, 3)


MODES = poptorch.MatMulSerializationMode


def test_hints_return_their_input(capsys):
    assert poptorch.nop(X) is X
    assert poptorch.set_available_memory(X, 0.1) is X
    assert poptorch.set_overlap_for_input(X, poptorch.OverlapMode.NoOverlap) is X
    assert poptorch.set_overlap_for_output(X, poptorch.OverlapMode.NoOverlap) is X
    assert poptorch.recomputationCheckpoint(X) is X
    assert poptorch.recomputationCheckpoint(X, X) == (X, X)
    assert poptorch.ipu_print_tensor(X, "x") is X
    assert capsys.readouterr().out.startswith("x: tensor(")


@pytest.mark.parametrize(("mode", "factor"), [(MODES.InputChannels, 2), (MODES.ReducingDim, 3), (MODES.Disabled, 0)])
def test_serialized_products_are_products(mode, factor):
    assert torch.equal(poptorch.serializedMatMul(X, X.T, mode, factor), X @ X.T)


def test_serialized_products_need_a_factor_that_divides():
    with pytest.raises(AssertionError, match="ReducingDim has 3 elements, which is not a multiple of the factor 2"):
        poptorch.serializedMatMul(X, X.T, MODES.ReducingDim, 2)
    with pytest.raises(AssertionError, match="mode must be of type MatMulSerializationMode"):
        poptorch.serializedMatMul(X, X.T, "rows", 2)


def test_dynamic_slices_start_at_a_tensor():
    assert poptorch.dynamic_slice(X, 1, torch.tensor([1]), 2).tolist() == [[1, 2], [4, 5]]
    updated = poptorch.dynamic_update(X, torch.zeros(2, 2), 1, torch.tensor([1]), 2)
    assert updated.tolist() == [[0, 0, 0], [3, 0, 0]]


def test_for_loop_applies_its_body_repeatedly():
    assert poptorch.for_loop(3, lambda x: x * 2, [torch.ones(1)])[0] == 8
    with pytest.raises(poptorch.Error, match="takes a list of tensors; a Tensor was given"):
        poptorch.for_loop(1, lambda x: x, X)
    with pytest.raises(poptorch.Error, match="returned 2 tensors, but takes 1"):
        poptorch.for_loop(1, lambda x: (x, x), [X])


def test_cond_chooses_a_body():
    for condition, expected in ((True, 1), (False, 2)):
        chosen = poptorch.cond(torch.tensor(condition), lambda: torch.tensor(1), [], lambda: torch.tensor(2), [])
        assert chosen[0] == expected


def test_attributes_are_stored():
    with poptorch.Attribute(__outline={"layer": "1"}) as attribute:
        assert attribute.attributes == {"__outline": {"layer": "1"}}


class TestScriptNames:
    def test_multi_conv_does_not_change_results(self):
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

    def test_nearest_within_the_same_example(self):
        x, y = torch.tensor([[0.0], [5.0], [5.0]]), torch.tensor([[1.0], [4.0], [9.0]])
        assert poptorch.nearest(x, y).tolist() == [0, 1, 1]
        assert poptorch.nearest(x, y, torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1])).tolist() == [0, 1, 2]

    def test_farthest_point_sampling(self):
        points = torch.tensor([[0.0], [1.0], [9.0], [4.0], [0.0], [2.0]])
        assert poptorch.fps(points, [0, 4, 6], ratio=0.5).tolist() == [0, 2, 4]
        assert poptorch.fps(torch.arange(30.0)[:, None], [0, 30], ratio=0.1).tolist() == [0, 29, 14]
        assert len(poptorch.fps(points, [0, 6], random_start=True)) == 3


class OnHost(nn.Module):
    """Calls numpy in the middle of a program."""

    def __init__(self):
        super().__init__()
        self.model = Perceptron()
        self.cpu = poptorch.CPU(self.doubled, "doubled")

    def doubled(self, x):
        assert x.sum().item() != 1.0
        return torch.from_numpy(x.numpy() * 2)

    def forward(self, x, labels=None):
        return self.model(self.cpu(x), labels)


class TestCPU:
    def test_runs_in_programs_for_inference(self):
        model = OnHost()
        with poptorch.injected(forbids_host_access=True):
            found = poptorch.inferenceModel(model, options(2))(X)
        assert torch.allclose(found, Perceptron()(X * 2))

    def test_runs_outside_of_programs(self):
        assert torch.equal(OnHost()(X), Perceptron()(X * 2))

    def test_training_programs_are_refused(self):
        with pytest.raises(poptorch.Error, match="only supported in inference graphs; the model calls 'doubled'"):
            poptorch.trainingModel(OnHost())(*batches(1, 2, torch.float32)[0])

    def test_only_the_host_function_sees_values(self):
        class Looks(OnHost):
            def forward(self, x, labels=None):
                return super().forward(x * x.max().item(), labels)

        executor = poptorch.inferenceModel(Looks())
        executor(X)
        message = "calls `item` on a tensor, but the host cannot see values"
        with poptorch.injected(forbids_host_access=True), pytest.raises(poptorch.Error, match=message):
            executor(X)


@pytest.mark.parametrize("strict", [False, True])
def test_cpu_function_may_use_numpy(strict):
    operation = poptorch.CPU(lambda x: torch.from_numpy(x.numpy() * 2), "double")
    with poptorch.configured(strict=strict):
        assert infer(lambda x: operation(x) + 1, torch.ones(2)).tolist() == [3, 3]


class TestCustomOp:
    def call(self, example=X, name="scaled"):
        return poptorch.custom_op([X], name, "tests", 1, example_outputs=[example], attributes={"by": 3})

    def test_registered_function_computes_the_operation(self):
        poptorch.register_custom_op("scaled", "tests", lambda x, by: x * by)
        assert torch.equal(self.call()[0], X * 3)

    def test_operation_may_return_several_tensors(self):
        poptorch.register_custom_op("both", "tests", lambda x: (x, -x))
        found = poptorch.custom_op([X], "both", "tests", 1, [X, X])
        assert torch.equal(found[1], -X)

    def test_gradients_flow_through_the_operation(self):
        poptorch.register_custom_op("tripled", "tests", lambda x: x * 3)

        class Model(Perceptron):
            def forward(self, x, labels):
                return super().forward(poptorch.custom_op([x], "tripled", "tests", 1, [x])[0], labels)

        model = Model()
        poptorch.trainingModel(model)(*batches(1, 2, torch.float32)[0])
        assert not torch.equal(model.first.weight, Perceptron().first.weight)

    def test_unregistered_operation_is_refused(self):
        with pytest.raises(poptorch.Error, match=r"no operation 'unknown' of the domain 'tests'.*register_custom_op"):
            self.call(name="unknown")

    def test_outputs_unlike_the_examples_are_refused(self):
        poptorch.register_custom_op("scaled", "tests", lambda x, by: x * by)
        with pytest.raises(
            poptorch.Error, match=r"returned \[\(\(2, 3\), torch.float32\)\], but its `example_outputs`"
        ):
            self.call(example=X[:1])


@pytest.mark.parametrize("prints_gradient", [True, False])
def test_tensors_and_their_gradients_are_printed_once_for_each_micro_batch(capsys, prints_gradient):
    class Printing(Perceptron):
        def forward(self, x, labels):
            hidden = poptorch.ipu_print_tensor(self.first(x), "hidden", prints_gradient)
            return poptorch.identity_loss(self.second(hidden) - labels, "mean")

    poptorch.trainingModel(Printing(), options(accumulation=2))(torch.ones(2, 3), torch.ones(2, 2))
    printed = capsys.readouterr().out
    assert printed.count("hidden: tensor") == 2
    assert printed.count("hidden_gradient: tensor") == 2 * prints_gradient
