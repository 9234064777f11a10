import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.trainer_pt_utils import EvalLoopContainer

from portico.errors import InputError
from portico.loop.outputs import GrowingArray, OutputBuffer, OutputList, convert_to_arrays


def joined(*batches, **options):
    arrays = OutputBuffer(**options)
    for batch in batches:
        arrays.add(batch)
    return arrays.result()


def listed(*batches, **options):
    batch_list = OutputList(**options)
    for batch in batches:
        batch_list.add(batch)
    return batch_list.result()


def test_no_batches():
    assert joined() is None
    assert listed() is None


@pytest.mark.parametrize("num_rows", [None, 0, 2, 3, 100])
def test_batches_are_joined_in_order(num_rows):
    result = joined(torch.tensor([1, 2]), torch.tensor([3]), num_rows=num_rows)
    assert result.tolist() == [1, 2, 3]
    assert result.dtype == np.int64


def test_scalars_are_joined():
    assert joined(torch.tensor(1.0), torch.tensor(2.0)).tolist() == [1.0, 2.0]
    assert joined(torch.tensor(1.0)).shape == ()  # of a single batch, as under transformers


def test_short_batches_are_padded():
    result = joined(torch.ones(2, 1, 2), torch.ones(1, 3, 2))
    assert result.shape == (3, 3, 2)
    assert (result[:2, 1:] == -100).all()
    assert result[2].sum() == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("num_rows", [None, 40])
def test_padding_equals_transformers(dtype, num_rows):
    generator = torch.Generator().manual_seed(0)
    widths = torch.randint(1, 9, (60,), generator=generator).tolist()
    batches = [
        (torch.rand(1 + index % 3, width, 2, generator=generator) * 9).to(dtype) for index, width in enumerate(widths)
    ]
    theirs = EvalLoopContainer()
    for batch in batches:
        theirs.add(batch)
    result, expected = joined(*batches, num_rows=num_rows), theirs.get_arrays()
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)


def test_rows_are_spread_in_chunks(monkeypatch):
    monkeypatch.setattr("portico.loop.outputs._MOVED_AT_ONCE_BYTES", 64)
    batches = [torch.full((50, width), float(width)) for width in (1, 3, 2, 7, 5)]
    result = joined(*batches)
    for index, batch in enumerate(batches):
        rows = result[50 * index : 50 * (index + 1)]
        assert (rows[:, : batch.shape[1]] == batch.shape[1]).all()
        assert (rows[:, batch.shape[1] :] == -100).all()


@pytest.mark.parametrize("num_rows", [None, 1])
@pytest.mark.parametrize("in_place", [True, False])
def test_buffer_grows_beyond_expected_rows(num_rows, in_place, monkeypatch):
    if not in_place:
        monkeypatch.setattr("portico.loop.outputs._GROWS_IN_PLACE", False)
    batches = [torch.arange(start, start + 7) for start in range(0, 700, 7)]
    assert joined(*batches, num_rows=num_rows).tolist() == list(range(700))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.int64, torch.float32),
        (torch.float32, torch.int64),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("row_shape", [(2,), (3,), ()])
def test_dtype_promotion_equals_transformers(first, second, row_shape):
    batches = [torch.ones(2, *[2 for _ in row_shape], dtype=first), torch.full((1, *row_shape), 1.5).to(second)]
    theirs = EvalLoopContainer()
    for batch in batches:
        theirs.add(batch)
    result, expected = joined(*batches), theirs.get_arrays()
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)


def resident_mebibytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the process from /proc")
@pytest.mark.parametrize("num_rows", [None, 3000])
@pytest.mark.parametrize("widths", [[64], [16, 48, 64, 32]])
def test_peak_memory_is_close_to_result(num_rows, widths):
    Path("/proc/self/clear_refs").write_text("5")  # forgets the highest point so far
    before = resident_mebibytes()
    arrays = OutputBuffer(num_rows=num_rows)
    for index in range(300):
        arrays.add(torch.ones(10, widths[index % len(widths)], 32))
    result = arrays.result()
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    assert result.shape == (3000, 64, 32)
    assert (int(line.split()[1]) / 1024 - before) / (result.nbytes / 2**20) < 1.2


def test_nested_outputs_keep_their_structure():
    Pair = namedtuple("Pair", "left right")
    batch = {"a": (torch.ones(2), [torch.zeros(2)]), "b": Pair(torch.ones(2, 1), torch.ones(2))}
    result = joined(batch, batch)
    assert isinstance(result["a"], tuple)
    assert result["a"][1][0].shape == (4,)
    assert isinstance(result["b"], Pair)
    assert result["b"].left.shape == (4, 1)


def test_views_are_copied():
    wide = torch.arange(12.0).view(3, 4)
    assert joined(wide[:, 1], wide.t()[0]).tolist() == [1.0, 5.0, 9.0, 0.0, 4.0, 8.0]


def test_batch_without_the_output_of_the_others_is_rejected():
    arrays = OutputBuffer()
    arrays.add(torch.ones(2))
    with pytest.raises(InputError, match=r"gave the outputs \[\] where those before it gave \[''\]"):
        arrays.add(())


def test_incompatible_shapes_are_rejected():
    message = r"rows of shape \[4, 4\] follow rows of shape \[4, 3\].*`eval_do_concat_batches=False`"
    with pytest.raises(InputError, match=message):
        joined(torch.ones(2, 4, 3), torch.ones(2, 4, 4))
    with pytest.raises(InputError, match=r"rows of shape \[\] follow rows of shape \[1\]"):
        joined(torch.ones(2, 1), torch.ones(2))


def test_changing_outputs_are_rejected():
    with pytest.raises(InputError, match=r"gave the outputs \[\"\['b'\]\"\] where those before it gave"):
        joined({"a": torch.ones(1)}, {"b": torch.ones(1)})


def test_non_tensor_outputs_are_rejected():
    with pytest.raises(TypeError, match=r"Unsupported type str among the outputs .*, at \[1\].*`ignore_keys`"):
        joined((torch.ones(1), "text"))


def test_eval_accumulation_moves_tensors(monkeypatch):
    column = GrowingArray(move_every=2)
    column.append(torch.ones(2))
    assert column._num_values == 2, "what is on the host already is taken at once"
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)  # tensors of a device from here on
    column.append(torch.ones(2))
    assert column._num_values == 2
    column.append(torch.ones(2))
    assert column._num_values == 6
    column.append(torch.zeros(1))
    assert column.result().tolist() == [1.0] * 6 + [0.0]


def test_eval_accumulation_moves_lists():
    batch_list = OutputList(move_every=2)
    for _ in range(3):
        batch_list.add(torch.ones(2))
    assert [type(batch) for batch in batch_list._moved] == [np.ndarray, np.ndarray]
    assert [type(batch) for batch in batch_list._on_device] == [torch.Tensor]


def test_output_list_keeps_batches():
    result = listed(torch.ones(2), torch.ones(1))
    assert [len(batch) for batch in result] == [2, 1]
    assert all(isinstance(batch, np.ndarray) for batch in result)


def test_output_list_copies_views():
    hidden = torch.ones(2, 1000)
    (batch,) = listed(hidden[:, 0])
    assert torch.from_numpy(batch).untyped_storage().nbytes() == 8


@pytest.mark.parametrize("collect", [OutputBuffer, OutputList])
def test_result_empties_the_buffer(collect):
    arrays = collect()
    arrays.add(torch.ones(1))
    assert arrays.result() is not None
    assert arrays.result() is None


def test_bfloat16_becomes_float32():
    assert convert_to_arrays(torch.ones(1, dtype=torch.bfloat16)).dtype == np.float32
    assert convert_to_arrays(torch.ones(1, requires_grad=True)).dtype == np.float32
    assert convert_to_arrays("text") == "text"


def test_model_outputs_are_nested_tensors():
    output = SequenceClassifierOutput(logits=torch.ones(2, 3))
    assert joined(output, output)["logits"].shape == (4, 3)
