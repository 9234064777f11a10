"""Modules that write where a mask is true, and batch norm in evaluation."""

import pytest
import torch
from torch import nn

import portico.ort
from portico.ort.api import restore, running_in_torch


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


@pytest.mark.parametrize(("kind", "shape"), [("1d", (4, 3)), ("1d", (2, 3, 5)), ("2d", (2, 3, 4, 4))])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_evaluation_uses_the_running_statistics(kind, shape, affine):
    torch.manual_seed(0)
    net, x = {"1d": nn.BatchNorm1d, "2d": nn.BatchNorm2d}[kind](3, affine=affine), torch.randn(shape)
    net(x * 3 + 1)
    portico.ort.compile(net.eval(), strict=True)
    with torch.no_grad():
        found = net(x)
        with running_in_torch(net):
            torch.testing.assert_close(found, net(x))
