"""Inputs are checked and cut, outputs are joined."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset
from transformers.modeling_outputs import SequenceClassifierOutput

import poptorch_emulator as poptorch
from emulator_peers import Calls, Perceptron, options

MODES = poptorch.OutputMode


class Echo(nn.Module):
    """Returns its arguments; has a parameter, as models do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Any, other: Any = None) -> Any:
        return x


def rows(number: int) -> torch.Tensor:
    return torch.arange(float(number))


class TestOutputs:
    def test_containers_of_the_model_are_kept(self):
        Pair = namedtuple("Pair", "a b")

        class Containers(Echo):
            def forward(self, x):
                return {"pair": Pair(x, [x + 1]), "out": SequenceClassifierOutput(logits=x), "none": None}

        found = poptorch.inferenceModel(Containers(), options(2))(rows(2))
        assert isinstance(found["pair"], Pair)
        assert found["pair"].b[0].tolist() == [1, 2]
        assert isinstance(found["out"], SequenceClassifierOutput)
        assert found["out"].logits.tolist() == [0, 1]
        assert found["none"] is None

    def test_wide_dtypes_become_device_dtypes(self):
        found = poptorch.inferenceModel(Echo())((torch.tensor([1]), torch.tensor([1.0], dtype=torch.float64)))
        assert [tensor.dtype for tensor in found] == [torch.int32, torch.float32]


# PopART documents the anchors of a call as [iterations, accumulation, replicas, ...], of which a mode returns a part.
SELECTIONS = {
    MODES.All: lambda anchors, period: anchors,
    MODES.EveryN: lambda anchors, period: anchors[period - 1 :: period],
    MODES.Final: lambda anchors, period: anchors[-1, -1],
    MODES.Sum: lambda anchors, period: anchors.sum((0, 1)),
}
PERIODS = [(iterations, period) for iterations in (1, 2, 4) for period in (1, 2, 4) if period <= iterations]


class Scaled(nn.Module):
    """Returns the scaled rows, a whole number for each row, and the mean of the rows as its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> Any:
        scaled = self.scale * x
        return scaled, x[:, 0].long(), poptorch.identity_loss(scaled, "mean")


@pytest.mark.parametrize("rows_", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize(("training", "accumulation"), [(True, 1), (True, 3), (False, 1)])
@pytest.mark.parametrize(("iterations", "period"), PERIODS)
@pytest.mark.parametrize("mode", [*SELECTIONS, MODES.Default])
def test_outputs_of_every_layout_and_mode(mode, iterations, period, training, accumulation, replicas, rows_):
    chosen = options(iterations, replicas, accumulation).outputMode(mode, period)
    # The period changes nothing in other modes.
    select = SELECTIONS[mode if mode is not MODES.Default else MODES.Final if training else MODES.All]
    layout = (iterations, accumulation, replicas)
    parts = torch.arange(2.0 * rows_ * iterations * accumulation * replicas).reshape(*layout, rows_, 2)
    loader = poptorch.DataLoader(chosen, TensorDataset(parts.reshape(-1, 2)), batch_size=rows_)
    [(x,)] = loader
    model, rate = Scaled(), 2.0**-5
    if training:
        program = poptorch.trainingModel(model, chosen, poptorch.optim.SGD(model.parameters(), lr=rate))
    else:
        program = poptorch.inferenceModel(model, chosen)
    scaled, numbers, losses = program(x)

    # Each iteration uses the scale that the updates before it have left.
    scales = torch.ones(iterations, 1, 1, 1, 1)
    for iteration in range(1, iterations if training else 1):
        scales[iteration] = scales[iteration - 1] - rate * parts[iteration - 1].mean()
    expected = scales * parts
    assert scaled.allclose(select(expected, period).reshape(-1, 2))
    assert numbers.tolist() == select(parts[..., 0], period).flatten().tolist()
    means = select(expected.mean((-1, -2)), period)
    assert losses.shape == (() if means.numel() == 1 else (means.numel(),))
    assert losses.flatten().allclose(means.flatten())


@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
@pytest.mark.parametrize(("iterations", "period"), [(1, 2), (2, 4), (3, 2), (4, 3)])
def test_return_period_must_be_a_factor_of_the_device_iterations(wrap, iterations, period):
    chosen = options(iterations).outputMode(MODES.EveryN, period)
    with pytest.raises(
        poptorch.Error, match=f"EveryN, {period}, must be a factor of .*deviceIterations, {iterations}"
    ):
        wrap(Scaled(), chosen)(torch.ones(iterations, 2))


class TestInputs:
    def compiled(self, *args, **kwargs):
        executor = poptorch.inferenceModel(Echo())
        executor(*args, **kwargs)
        return executor

    @pytest.mark.parametrize(
        ("first", "second", "message"),
        [
            ([rows(2)], [rows(2), rows(2)], "Length mismatch for x: expected 1 but got 2"),
            ((rows(2), 3), (rows(2), 4), r"Value mismatch for x\[1\]: expected 3 but got 4"),
            ({"a": rows(2)}, {"a": rows(4)}, r"Shape mismatch for x\[a\]"),
            ({"a": rows(2)}, {"b": rows(2)}, r"Keys mismatch for x: expected \['a'\] but got \['b'\]"),
            (rows(2), [rows(2)], "Type mismatch for x: expected <class 'torch.Tensor'> but got <class 'list'>"),
        ],
    )
    def test_inputs_of_another_form_are_refused(self, first, second, message):
        with pytest.raises(poptorch.Error, match=message) as caught:
            self.compiled(first)(second)
        assert "inputs passed at runtime don't match the inputs used to compile" in str(caught.value)

    def test_positional_and_named_arguments_are_the_same(self):
        assert self.compiled(rows(2))(x=rows(2)).tolist() == [0, 1]

    def test_arguments_missing_at_compilation_are_refused(self):
        with pytest.raises(poptorch.Error, match="Keys mismatch for the arguments"):
            self.compiled(rows(2))(rows(2), other=rows(2))

    def test_unknown_arguments_are_refused(self):
        with pytest.raises(poptorch.Error, match="do not fit the model's forward"):
            self.compiled(rows(2))(rows(2), another=1)

    def test_tensors_without_dimensions_are_for_single_micro_batches(self):
        class Scaled(Echo):
            def forward(self, x, other):
                return x * other

        assert poptorch.inferenceModel(Scaled())(rows(2), torch.tensor(2.0)).tolist() == [0, 2]
        with pytest.raises(
            AssertionError, match=r"In the input other, the batch dimension \(1\) must be a multiple of"
        ):
            poptorch.inferenceModel(Scaled(), options(2))(rows(2), torch.tensor(2.0))

    def test_in_place_changes_of_inputs_reach_the_caller_once(self):
        class InPlace(Echo):
            def forward(self, x):
                x += 1
                return x

        x = torch.zeros(2)
        poptorch.inferenceModel(InPlace())(x)
        assert x.tolist() == [1, 1]

    def test_replicas_of_an_input_group_read_the_same_rows(self):
        chosen = options(1, 4).inputReplicaGrouping(2)
        assert poptorch.inferenceModel(Echo(), chosen)(rows(2)).tolist() == [0, 0, 1, 1]


tensors = st.builds(
    lambda rows, columns, dtype: torch.zeros(rows, columns, dtype=dtype),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([torch.float32, torch.int32, torch.float16]),
)


structures = st.recursive(
    tensors | st.booleans() | st.none(),
    lambda inner: st.tuples(inner) | st.lists(inner, max_size=2) | st.fixed_dictionaries({"a": inner}),
    max_leaves=3,
)


def form(value):
    """Everything that a compiled program fixes about an argument."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape))
    if isinstance(value, dict):
        return (dict, [(key, form(item)) for key, item in value.items()])
    return (type(value), [form(item) for item in value]) if isinstance(value, list | tuple) else (type(value), value)


@given(first=structures, second=structures)
@settings(max_examples=60, deadline=None)
def test_program_accepts_arguments_of_one_form(first, second):
    executor = poptorch.inferenceModel(Echo())
    executor(first)
    if form(first) == form(second):
        executor(second)
    else:
        with pytest.raises(poptorch.Error, match=r"mismatch for x[\s\S]*don't match the inputs used to compile"):
            executor(second)


@given(first=tensors, second=tensors)
@settings(max_examples=60, deadline=None)
def test_program_accepts_tensors_of_one_dtype_and_shape(first, second):
    executor = poptorch.inferenceModel(Echo())
    executor(first)
    if first.dtype != second.dtype:
        message = rf"Data type mismatch for x: expected {first.dtype} but got {second.dtype}"
    elif first.shape != second.shape:
        message = rf"Shape mismatch for x: expected \[{first.shape[0]}, {first.shape[1]}\] but got"
    else:
        executor(second)
        return
    with pytest.raises(poptorch.Error, match=message):
        executor(second)


def test_variadic_keyword_only_and_default_arguments():
    class Model(Perceptron):
        def forward(self, x, *more, factor=1, mask=None, **named):
            out = super().forward(x) * factor + sum(more)
            return out if mask is None else out * mask + named["shift"]

    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    executor = poptorch.inferenceModel(Model())
    plain = executor(x, torch.ones(2, 2))
    assert torch.equal(executor(x, torch.ones(2, 2)), plain)
    named = poptorch.inferenceModel(Model())
    arguments = {"factor": 2, "mask": torch.ones(2, 1), "shift": torch.ones(2, 1)}
    assert torch.allclose(named(x, torch.ones(2, 2), **arguments), (plain - 1) * 2 + 2, atol=1e-6)


def test_default_arguments_may_be_passed_or_omitted():
    program = poptorch.inferenceModel(Calls(lambda x, y=None, scale=2: x * scale if y is None else y))
    for args, kwargs in ((), {}), ((None,), {}), ((), {"y": None, "scale": 2}), ((None, 2), {}):
        assert program(torch.ones(2), *args, **kwargs).tolist() == [2, 2]
    with pytest.raises(poptorch.Error, match=r"expected \['x'\] but got \['x', 'y'\]"):
        program(torch.ones(2), torch.ones(2))
