"""Writing where a mask is true."""

import pytest
import torch
from torch import nn

import portico.ort
from portico.ort.api import restore


def everywhere(x, mask):
    x[mask] = 0.5


def rows(x, mask):
    x[mask[:, 0]] = torch.arange(4.0)


def columns(x, mask):
    x[:, mask[0]] = 2.0


def cells_of_rows(x, mask):
    x[mask[:, 0], torch.tensor([1])] = 2.0


def added(x, mask):
    x.index_put_([mask], torch.tensor(0.5), accumulate=True)


class Writing(nn.Module):
    def __init__(self, write, threshold):
        super().__init__()
        self.write, self.threshold = write, threshold

    def forward(self, x):
        written = x * 1
        self.write(written, x > self.threshold)
        return written


@pytest.mark.parametrize("write", [everywhere, rows, columns, cells_of_rows, added])
@pytest.mark.parametrize("threshold", [0.0, -10.0, 10.0], ids=["some", "all", "none"])
def test_a_mask_tells_where_to_write(write, threshold):
    net = portico.ort.compile(Writing(write, threshold))
    outcomes = []
    for _ in range(2):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        y = net(x)
        y.square().sum().backward()
        outcomes.append((y, x.grad))
        restore(net)
    torch.testing.assert_close(*outcomes)
