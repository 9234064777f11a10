"""Blocks become pipeline stages, and stages have rules."""

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, options

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
    def test_are_counted(self):
        executor = pipelined()
        executor(*BATCH)
        assert executor.compiled.num_stages == 2
        assert executor.compiled.num_ipus == 2
        assert executor.compiled.ipu_of_parameter["second.weight"] == 1

    def test_need_accumulation_of_2n_minus_1(self):
        with pytest.raises(poptorch.Error, match=r"gradientAccumulation must be greater than or equal.*\(3\)"):
            pipelined(accumulation=2)(*BATCH)

    def test_do_not_matter_to_sharded_execution(self):
        pipelined(accumulation=1, execution=poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))(*BATCH)

    def test_of_inference_need_device_iterations(self):
        with pytest.raises(poptorch.Error, match=r"deviceIterations must be greater than or equal.*\(2\)"):
            pipelined(train=False)(BATCH[0])
        pipelined(train=False, iterations=2)(BATCH[0])

    def test_come_after_the_power_of_two(self):
        model = Perceptron()
        poptorch.BeginBlock(model.first, ipu_id=0)
        poptorch.BeginBlock(model.second, ipu_id=2)
        with pytest.raises(poptorch.Error, match="power of two"):
            pipelined(model, accumulation=1)(*BATCH)

    def test_may_be_listed_by_the_names_of_blocks(self):
        model = Perceptron()
        poptorch.BeginBlock(model.first, "first")
        poptorch.BeginBlock(model.second, "second")
        execution = poptorch.PipelinedExecution(poptorch.Stage("first").ipu(1), poptorch.Stage("second").ipu(0))
        executor = pipelined(model, execution=execution)
        executor(*BATCH)
        assert executor.compiled.ipu_of_parameter["first.weight"] == 1

    def test_change_nothing_in_the_numbers(self):
        plain, blocked = Perceptron(), two_blocks()
        for model in (plain, blocked):
            pipelined(model)(*BATCH)
        assert torch.equal(plain.first.weight, blocked.first.weight)


class TestBlocks:
    def test_begin_once_at_a_module(self):
        model = two_blocks()
        with pytest.raises(poptorch.Error, match=r"module has already been assigned to a block."):
            poptorch.BeginBlock(model.first, ipu_id=1)

    def test_can_be_removed(self):
        model = two_blocks()
        poptorch.removeBlocks(model)
        poptorch.BeginBlock(model.first, ipu_id=0)
        assert not model.second._forward_pre_hooks

    def test_begin_at_modules_only(self):
        with pytest.raises(poptorch.Error, match=r"takes a torch.nn.Module; a function was given"):
            poptorch.BeginBlock(lambda x: x)

    def test_of_functions(self):
        class Model(Perceptron):
            @poptorch.BlockFunction("all", ipu_id=1)
            def forward(self, x, labels):
                return super().forward(x, labels)

        executor = pipelined(Model())
        executor(*BATCH)
        assert set(executor.compiled.ipu_of_parameter.values()) == {1}

    def test_that_are_scoped_leave_none_behind(self):
        class Model(Perceptron):
            def forward(self, x, labels):
                with poptorch.Block("first", ipu_id=0):
                    hidden = self.first(x)
                return nn.functional.mse_loss(self.second(hidden), labels)

        with pytest.raises(poptorch.Error, match="No active Block, all the ops must belong to a Block"):
            pipelined(Model())(*BATCH)

    def test_can_begin_anywhere(self):
        class Model(Perceptron):
            def forward(self, x, labels):
                with poptorch.Block("first", ipu_id=0):
                    hidden = self.first(x)
                poptorch.Block.start("second", ipu_id=1)
                return nn.functional.mse_loss(self.second(hidden), labels)

        executor = pipelined(Model())
        executor(*BATCH)
        assert executor.compiled.num_stages == 2

    def test_do_not_share_parameters(self):
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

    def test_are_nothing_on_the_host(self):
        assert two_blocks()(BATCH[0]).shape == (6, 2)


class TestStrict:
    @pytest.fixture(autouse=True)
    def strict(self):
        with poptorch.configured(strict=True):
            yield

    class Model(Perceptron):
        def forward(self, x, labels):
            return nn.functional.mse_loss(self.second(self.first(self.chosen(x))), labels)

    @pytest.mark.parametrize(
        "chosen",
        [
            lambda x: x if x.sum() > 0 else -x,
            lambda x: x[x[:, 0] > -100],
            lambda x: x * x.max().item(),
        ],
    )
    def test_what_depends_on_data_is_refused(self, chosen):
        model = self.Model()
        model.chosen = chosen
        with pytest.raises(poptorch.Error, match="cannot be compiled: a shape or a branch depends on the values"):
            poptorch.trainingModel(model)(*BATCH)

    def test_what_does_not_passes(self):
        model = self.Model()
        model.chosen = lambda x: torch.where(x > 0, x, -x)
        poptorch.trainingModel(model)(*BATCH)

    def test_random_numbers_of_python_are_announced(self):
        import random

        model = self.Model()
        model.chosen = lambda x: x * random.random()
        with pytest.warns(UserWarning, match="a compiled program repeats those of its compilation"):
            poptorch.trainingModel(model)(*BATCH)


class TestFaults:
    def test_host_access_can_be_forbidden(self):
        class Model(Perceptron):
            def forward(self, x, labels):
                out, loss = super().forward(x, labels)
                return out * x.max().item(), loss

        executor = poptorch.trainingModel(Model())
        executor(*BATCH)
        with (
            poptorch.injected(forbids_host_access=True),
            pytest.raises(poptorch.Error, match="calls `item` on a tensor, but the host cannot see values"),
        ):
            executor(*BATCH)

    def test_a_forgotten_set_optimizer_is_noticed(self):
        model = Perceptron()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        executor = poptorch.trainingModel(model, None, optimizer)
        with poptorch.injected(requires_set_optimizer=True):
            executor(*BATCH)
            optimizer.param_groups[0]["lr"] = 0.2
            with pytest.raises(poptorch.Error, match="changed without `setOptimizer`"):
                executor(*BATCH)
            executor.setOptimizer(optimizer)
            executor(*BATCH)

    def test_a_call_can_fail_and_the_next_go_on(self):
        executor = poptorch.inferenceModel(Perceptron())
        error = poptorch.RecoverableError("gone", "PARTITION_RESET")
        with poptorch.injected(fails_on_call=(2,), error=error):
            executor(BATCH[0])
            with pytest.raises(poptorch.RecoverableError, match="gone") as caught:
                executor(BATCH[0])
            assert caught.value.recovery_action == "PARTITION_RESET"
            executor(BATCH[0])

    def test_inputs_can_be_checked(self):
        def full(arguments):
            if not arguments["x"].any(dim=1).all():
                raise poptorch.Error("a row of zeros")

        executor = poptorch.inferenceModel(Perceptron())
        with poptorch.injected(input_check=full):
            executor(BATCH[0])
            with pytest.raises(poptorch.Error, match="a row of zeros"):
                executor(torch.zeros(6, 3))
