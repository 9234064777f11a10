"""Blocks become pipeline stages, and stages have rules."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Calls, Perceptron, batches, options

rules = settings(max_examples=25, deadline=None)

BATCH = batches(1, 6, torch.float32)[0]


def pipelined(model=None, accumulation=3, execution=None, iterations=1, train=True):
    model = model or two_blocks()
    chosen = options(iterations, 1, accumulation if train else 1)
    chosen.setExecutionStrategy(execution or poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    return poptorch.trainingModel(model, chosen) if train else poptorch.inferenceModel(model, chosen)


def two_blocks():
    model = Perceptron()
    poptorch.BeginBlock(model.first, "first", ipu_id=0)
    poptorch.BeginBlock(model.second, "second", ipu_id=1)
    return model


class TestStages:
    def test_stages_and_ipus_are_counted(self):
        executor = pipelined()
        executor(*BATCH)
        assert executor.compiled.num_stages == 2
        assert executor.compiled.num_ipus == 2
        assert executor.compiled.ipu_of_parameter["second.weight"] == 1

    def test_inference_needs_device_iterations(self):
        with pytest.raises(poptorch.Error, match=r"deviceIterations must be greater than or equal.*\(2\)"):
            pipelined(train=False)(BATCH[0])
        pipelined(train=False, iterations=2)(BATCH[0])

    def test_stages_may_list_names_of_blocks(self):
        model = Perceptron()
        poptorch.BeginBlock(model.first, "first")
        poptorch.BeginBlock(model.second, "second")
        execution = poptorch.PipelinedExecution(poptorch.Stage("first").ipu(1), poptorch.Stage("second").ipu(0))
        executor = pipelined(model, execution=execution)
        executor(*BATCH)
        assert executor.compiled.ipu_of_parameter["first.weight"] == 1

    def test_stages_do_not_change_results(self):
        plain, blocked = Perceptron(), two_blocks()
        for model in (plain, blocked):
            pipelined(model)(*BATCH)
        assert torch.equal(plain.first.weight, blocked.first.weight)


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
def test_rules_of_ipus_and_stages_hold_for_any_chain(ipus, accumulation, is_pipelined):
    stages = 1 + sum(before != after for before, after in pairwise(ipus))
    kind = poptorch.PipelinedExecution if is_pipelined else poptorch.ShardedExecution
    chosen = options(accumulation=accumulation).setExecutionStrategy(kind(poptorch.AutoStage.AutoIncrement))
    executor = poptorch.trainingModel(Chain(ipus), chosen)
    x = torch.ones(accumulation, 2)
    if max(ipus) == 2:
        with pytest.raises(poptorch.Error, match="power of two"):
            executor(x)
    elif is_pipelined and stages > 1 and accumulation < 2 * stages - 1:
        message = (
            r"Training\.gradientAccumulation must be greater than or equal to the number of pipeline stages "
            rf"\({2 * stages - 1}\) .* a model with {stages} pipeline stages .* an additional {stages - 1} stages"
        )
        with pytest.raises(poptorch.Error, match=message):
            executor(x)
    else:
        executor(x)
        assert executor.compiled.num_stages == stages
        assert executor.compiled.num_ipus == max(ipus) + 1


class TestBlocks:
    def test_begin_block_refuses_functions(self):
        with pytest.raises(poptorch.Error, match=r"takes a torch.nn.Module; a function was given"):
            poptorch.BeginBlock(lambda x: x)

    def test_block_function_places_a_forward(self):
        class Model(Perceptron):
            @poptorch.BlockFunction("all", ipu_id=1)
            def forward(self, x, labels):
                return super().forward(x, labels)

        executor = pipelined(Model())
        executor(*BATCH)
        assert set(executor.compiled.ipu_of_parameter.values()) == {1}

    def test_block_can_start_anywhere(self):
        class Model(Perceptron):
            def forward(self, x, labels):
                with poptorch.Block("first", ipu_id=0):
                    hidden = self.first(x)
                poptorch.Block.start("second", ipu_id=1)
                return nn.functional.mse_loss(self.second(hidden), labels)

        executor = pipelined(Model())
        executor(*BATCH)
        assert executor.compiled.num_stages == 2

    def test_parameter_on_two_ipus_is_refused(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
                self.second.weight = self.first.weight

            def forward(self, x, labels):
                return nn.functional.mse_loss(self.second(self.first(x)), labels)

        model = Tied()
        poptorch.BeginBlock(model.first, ipu_id=0)
        poptorch.BeginBlock(model.second, ipu_id=1)
        with pytest.raises(poptorch.Error, match=r"first.weight is used on IPUs \[0, 1\]"):
            pipelined(model)(BATCH[0], BATCH[0])

    def test_blocks_have_no_effect_on_the_host(self):
        assert two_blocks()(BATCH[0]).shape == (6, 2)


def test_outer_block_continues_after_an_inner_one():
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


@given(st.lists(st.sampled_from(["begin", "remove"]), max_size=6))
@rules
def test_blocks_can_be_added_and_removed_in_any_order(events):
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
