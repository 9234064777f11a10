import numpy as np
import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from portico.evaluation.arrays import BatchedArrays, to_arrays


def joined(*batches, **options):
    arrays = BatchedArrays(**options)
    for batch in batches:
        arrays.add(batch)
    return arrays.result()


def test_nothing_gives_nothing():
    assert joined() is None


def test_batches_are_joined_in_order():
    result = joined(torch.tensor([1, 2]), torch.tensor([3]))
    assert result.tolist() == [1, 2, 3]
    assert result.dtype == np.int64


def test_numbers_without_a_dimension_are_joined():
    assert joined(torch.tensor(1.0), torch.tensor(2.0)).tolist() == [1.0, 2.0]


def test_short_batches_are_padded():
    result = joined(torch.ones(2, 1, 2), torch.ones(1, 3, 2))
    assert result.shape == (3, 3, 2)
    assert (result[:2, 1:] == -100).all()
    assert result[2].sum() == 6


def test_nests_keep_their_form():
    batch = {"a": (torch.ones(2), [torch.zeros(2)])}
    result = joined(batch, batch)
    assert isinstance(result["a"], tuple)
    assert result["a"][1][0].shape == (4,)


@pytest.mark.parametrize("concatenate", [True, False])
def test_batches_leave_the_device_when_told_to(concatenate):
    arrays = BatchedArrays(concatenate=concatenate, move_every=2)
    for _ in range(3):
        arrays.add(torch.ones(2))
    assert [type(batch) for batch in arrays._batches] == [np.ndarray, np.ndarray, torch.Tensor]


def test_batches_can_stay_apart():
    result = joined(torch.ones(2), torch.ones(1), concatenate=False)
    assert [len(batch) for batch in result] == [2, 1]
    assert all(isinstance(batch, np.ndarray) for batch in result)


def test_a_result_is_given_once():
    arrays = BatchedArrays()
    arrays.add(torch.ones(1))
    assert arrays.result() is not None
    assert arrays.result() is None


def test_types_that_numpy_lacks_become_floats():
    assert to_arrays(torch.ones(1, dtype=torch.bfloat16)).dtype == np.float32
    assert to_arrays(torch.ones(1, requires_grad=True)).dtype == np.float32
    assert to_arrays("text") == "text"


def test_model_outputs_are_nests_too():
    output = SequenceClassifierOutput(logits=torch.ones(2, 3))
    assert joined(output, output)["logits"].shape == (4, 3)
