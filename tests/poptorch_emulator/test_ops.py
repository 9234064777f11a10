"""Operations of `poptorch` compute what they stand for."""

import pytest
import torch

import poptorch_emulator as poptorch

X = torch.arange(6.0).reshape(2, 3)
MODES = poptorch.MatMulSerializationMode


def test_pass_their_input_on(capsys):
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


def test_serialized_products_are_cut_evenly():
    with pytest.raises(AssertionError, match="ReducingDim has 3 elements, which is not a multiple of the factor 2"):
        poptorch.serializedMatMul(X, X.T, MODES.ReducingDim, 2)
    with pytest.raises(AssertionError, match="mode must be of type MatMulSerializationMode"):
        poptorch.serializedMatMul(X, X.T, "rows", 2)


def test_slices_start_where_a_tensor_says():
    assert poptorch.dynamic_slice(X, 1, torch.tensor([1]), 2).tolist() == [[1, 2], [4, 5]]
    updated = poptorch.dynamic_update(X, torch.zeros(2, 2), 1, torch.tensor([1]), 2)
    assert updated.tolist() == [[0, 0, 0], [3, 0, 0]]


def test_loops_apply_their_body_to_its_results():
    assert poptorch.for_loop(3, lambda x: x * 2, [torch.ones(1)])[0] == 8
    with pytest.raises(poptorch.Error, match="takes a list of tensors; a Tensor was given"):
        poptorch.for_loop(1, lambda x: x, X)
    with pytest.raises(poptorch.Error, match="returned 2 tensors, but takes 1"):
        poptorch.for_loop(1, lambda x: (x, x), [X])


def test_conditions_choose_a_body():
    for condition, expected in ((True, 1), (False, 2)):
        chosen = poptorch.cond(torch.tensor(condition), lambda: torch.tensor(1), [], lambda: torch.tensor(2), [])
        assert chosen[0] == expected
