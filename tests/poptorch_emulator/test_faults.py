"""Injected faults make runs fail."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch_emulator as poptorch
from emulator_peers import Falling, Perceptron, batches

rules = settings(max_examples=25, deadline=None)

BATCH = batches(1, 6, torch.float32)[0]


class TestFaults:
    def test_forgotten_set_optimizer_is_found(self):
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

    def test_call_after_a_failed_one_runs(self):
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


@given(failing=st.sets(st.integers(1, 6)))
@rules
def test_failed_calls_compute_nothing(failing):
    model = Falling()
    executor = poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=1.0))
    with poptorch.injected(fails_on_call=tuple(failing)):
        for number in range(1, 7):
            if number in failing:
                with pytest.raises(poptorch.Error, match="A failure was injected"):
                    executor(torch.ones(1))
            else:
                executor(torch.ones(1))
    assert model.weight.item() == len(failing) - 6
