"""Writing where a mask is true."""

import pytest
import torch

from unit.ort.lowered import assert_agrees


def everywhere(x, mask):
    return torch.ops.aten.index_put(x, [mask], torch.tensor(0.5))


def rows(x, mask):
    return torch.ops.aten.index_put(x, [mask[:, 0]], torch.arange(4.0))


def columns(x, mask):
    return torch.ops.aten.index_put(x, [None, mask[0]], torch.tensor(2.0))


def cells_of_rows(x, mask):
    return torch.ops.aten.index_put(x, [mask[:, 0], torch.tensor(1)], torch.tensor(2.0))


def added(x, mask):
    return torch.ops.aten.index_put(x, [mask], torch.tensor(0.5), True)


@pytest.mark.parametrize("write", [everywhere, rows, columns, cells_of_rows, added])
@pytest.mark.parametrize("threshold", [0.0, -10.0, 10.0], ids=["some", "all", "none"])
def test_a_mask_tells_where_to_write(write, threshold):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert_agrees(write, x, x > threshold)
