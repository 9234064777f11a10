"""E-5 to E-7, E-14, E-15, E-17 to E-19, E-24: what can be compiled, and what that fixes."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, options

rules = settings(max_examples=25, deadline=None)
BATCH = batches(1, 2, torch.float32)[0]


@given(count=st.integers(0, 3), is_marked=st.booleans(), extra=st.booleans())
@rules
def test_e5_there_is_one_final_loss(count, is_marked, extra):
    class Model(Perceptron):
        def forward(self, x, labels):
            out = self.second(self.first(x))
            losses = [functional.mse_loss(out, labels * number) for number in range(count)]
            total = sum(losses, out.sum())
            if is_marked:
                total = poptorch.identity_loss(total, "none")
            return (total, functional.l1_loss(out, labels)) if extra else total

    number = (1 if is_marked else count) + extra
    executor = poptorch.trainingModel(Model())
    if number == 1:
        executor(*BATCH)
    else:
        message = "Multiple independent losses found in graph" if number else "Couldn't find a loss in graph!"
        with pytest.raises(poptorch.Error, match=message):
            executor(*BATCH)


class Echo(nn.Module):
    def forward(self, x):
        return x


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
def test_e6_a_program_takes_arguments_of_one_form(first, second):
    executor = poptorch.inferenceModel(Echo())
    executor(first)
    if form(first) == form(second):
        executor(second)
    else:
        with pytest.raises(poptorch.Error, match=r"mismatch for x[\s\S]*don't match the inputs used to compile"):
            executor(second)


@given(first=tensors, second=tensors)
@settings(max_examples=60, deadline=None)
def test_e6_a_program_takes_tensors_of_one_type_and_shape(first, second):
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


SETTERS = {
    "deviceIterations": lambda o: o.deviceIterations(2),
    "replicationFactor": lambda o: o.replicationFactor(2),
    "outputMode": lambda o: o.outputMode(poptorch.OutputMode.Sum),
    "randomSeed": lambda o: o.randomSeed(3),
    "Training": lambda o: o.Training.gradientAccumulation(2),
    "Precision": lambda o: o.Precision.enableStochasticRounding(True),
    "TensorLocations": lambda o: o.TensorLocations.numIOTiles(8),
    "Distributed": lambda o: o.Distributed.configureProcessId(0, 2),
    "_Popart": lambda o: o._Popart.set("a", 1),
    "attribute": lambda o: setattr(o, "log_dir", "x"),
}


@given(name=st.sampled_from(sorted(SETTERS)), wraps=st.booleans())
@rules
def test_e7_options_are_frozen_by_what_uses_them_and_copies_are_not(name, wraps):
    chosen = poptorch.Options()
    kept = poptorch.inferenceModel(Echo(), chosen) if wraps else poptorch.DataLoader(chosen, [1, 2])
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        SETTERS[name](chosen)
    copied = chosen.clone()
    SETTERS[name](copied)
    assert copied != chosen
    assert kept.options.device_iterations == 1


class Chain(nn.Module):
    def __init__(self, ipus):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in ipus)
        for layer, ipu in zip(self.layers, ipus, strict=True):
            poptorch.BeginBlock(layer, ipu_id=ipu)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return poptorch.identity_loss(x.sum(), "none")


@given(
    ipus=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    accumulation=st.integers(1, 7),
    is_pipelined=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_e14_e24_ipus_are_a_power_of_two_and_then_stages_need_accumulation(ipus, accumulation, is_pipelined):
    stages = 1 + sum(before != after for before, after in pairwise(ipus))
    kind = poptorch.PipelinedExecution if is_pipelined else poptorch.ShardedExecution
    chosen = options(accumulation=accumulation).setExecutionStrategy(kind(poptorch.AutoStage.AutoIncrement))
    executor = poptorch.trainingModel(Chain(ipus), chosen)
    x = torch.ones(accumulation, 2)
    if max(ipus) == 2:
        with pytest.raises(poptorch.Error, match="power of two"):
            executor(x)
    elif is_pipelined and stages > 1 and accumulation < 2 * stages - 1:
        with pytest.raises(
            poptorch.Error, match=rf"gradientAccumulation must be .* pipeline stages \({2 * stages - 1}\)"
        ):
            executor(x)
    else:
        executor(x)
        assert executor.compiled.num_stages == stages
        assert executor.compiled.num_ipus == max(ipus) + 1


@given(st.lists(st.sampled_from(["begin", "remove"]), max_size=6))
@rules
def test_e15_a_block_begins_once_at_a_module(events):
    layer, has_block = nn.Linear(2, 2), False
    for event in events:
        if event == "remove":
            poptorch.removeBlocks(layer)
            has_block = False
        elif has_block:
            with pytest.raises(poptorch.Error, match=r"Linear module has already been assigned to a block\."):
                poptorch.BeginBlock(layer, ipu_id=0)
        else:
            assert poptorch.BeginBlock(layer, ipu_id=0) is layer
            has_block = True


STORED = {
    "memory": lambda o: o.setAvailableMemoryProportion({"IPU0": 0.1}),
    "partials": lambda o: o.Precision.setPartialsType(torch.float16),
    "rounding": lambda o: o.Precision.enableStochasticRounding(True),
    "offchip": lambda o: o.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    ),
    "patterns": lambda o: o._Popart.setPatterns({"TiedGather": True}),
    "cache": lambda o: o.enableExecutableCaching("nowhere"),
    "profile": lambda o: o.enableProfiling("nowhere"),
    "synthetic": lambda o: o.enableSyntheticData(True),
}


@given(names=st.sets(st.sampled_from(sorted(STORED))), half=st.booleans())
@rules
def test_e17_e18_what_is_only_stored_changes_no_number(names, half):
    found = []
    for chosen_names in (set(), names):
        model = Perceptron().half() if half else Perceptron()
        chosen = options(1, 2)
        for name in chosen_names:
            STORED[name](chosen)
        executor = poptorch.trainingModel(model, chosen, poptorch.optim.SGD(model.parameters(), lr=0.1))
        executor(*(tensor.to(model.first.weight.dtype) for tensor in BATCH))
        found.append(model.first.weight.detach().clone())
    assert found[0].dtype is (torch.float16 if half else torch.float32)
    assert torch.equal(*found)


CHANGES = {
    "mode": lambda model: model.train(),
    "hook": lambda model: model.first.register_forward_hook(lambda *_: torch.zeros(2, 8)),
    "pre_hook": lambda model: model.second.register_forward_pre_hook(lambda *_: (torch.zeros(2, 8),)),
    "child": lambda model: setattr(model, "second", nn.Linear(8, 2)),
    "class": lambda model: setattr(model.first, "__class__", nn.Identity),
}


@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=4))
@rules
def test_e19_python_is_what_it_was_at_compilation(names):
    model = Perceptron(dropout=0.9).eval()
    executor = poptorch.inferenceModel(model)
    before = executor(BATCH[0])
    for name in names:
        CHANGES[name](model)
    assert torch.equal(executor(BATCH[0]), before)
