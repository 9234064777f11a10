"""Phases run one after another, each on its IPUs."""

import pytest
import torch

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, options

BATCH = batches(1, 2, torch.float32)[0]


def trained(execution):
    model = Perceptron()
    poptorch.BeginBlock(model.first, "first")
    poptorch.BeginBlock(model.second, "second")
    executor = poptorch.trainingModel(model, options().setExecutionStrategy(execution))
    executor(*BATCH)
    return executor


def ipus(execution):
    found = trained(execution).compiled.ipu_of_parameter
    return found["first.weight"], found["second.weight"]


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        (poptorch.SerialPhasedExecution("first", "second"), (0, 0)),
        (poptorch.SerialPhasedExecution([poptorch.Stage("first"), poptorch.Stage("second")]), (0, 1)),
        (poptorch.ParallelPhasedExecution(poptorch.Phase("first"), poptorch.Phase("second")), (0, 1)),
        (poptorch.ParallelPhasedExecution(poptorch.Phase("first").ipus(1), poptorch.Phase("second").ipus(0)), (1, 0)),
    ],
)
def test_parameters_are_on_the_ipus_of_their_stages(execution, expected):
    assert ipus(execution) == expected


def test_phases_need_no_accumulation_and_do_not_change_results():
    plain = Perceptron()
    poptorch.trainingModel(plain)(*BATCH)
    phased = trained(
        poptorch.ParallelPhasedExecution("first", "second").sendTensorsOffChipAfterFwd().useSeparateBackwardPhase()
    )
    assert torch.equal(plain.first.weight, phased.model.first.weight)


def test_phases_are_found_by_number_and_stages_by_block():
    execution = poptorch.SerialPhasedExecution("first", "second")
    execution.phase(1).ipus(3)
    assert execution.stage("second").ipu_id == 3
    assert (
        execution.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd).liveness is poptorch.Liveness.OffChipAfterFwd
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: poptorch.Phase("a", poptorch.Stage("b")), "takes stages or names of blocks, not both"),
        (lambda: poptorch.Phase("a").ipus(0, 1), r"got 2 IPU\(s\) for 1 stage"),
        (lambda: poptorch.Phase(3), "Phase must be of type Stage or str; 3 is int"),
        (lambda: poptorch.SerialPhasedExecution(3), "phase must be of type"),
        (lambda: poptorch.SerialPhasedExecution("a").setTensorsLiveness(1), "must be of type Liveness"),
        (lambda: poptorch.PipelinedExecution("a").stage("b"), "No stage has a block 'b'; the blocks are a"),
    ],
)
def test_wrong_values_are_refused(make, message):
    with pytest.raises(AssertionError, match=message):
        make()
