"""Batch norm in evaluation uses the running statistics."""

import pytest
import torch
from torch import nn

import portico.ort
from portico.ort.api import running_in_torch


@pytest.mark.parametrize(("kind", "shape"), [("1d", (4, 3)), ("1d", (2, 3, 5)), ("2d", (2, 3, 4, 4))])
@pytest.mark.parametrize("affine", [True, False])
def test_it_runs_in_onnxruntime(kind, shape, affine):
    torch.manual_seed(0)
    net, x = {"1d": nn.BatchNorm1d, "2d": nn.BatchNorm2d}[kind](3, affine=affine), torch.randn(shape)
    net(x * 3 + 1)
    portico.ort.compile(net.eval(), strict=True)
    with torch.no_grad():
        found = net(x)
        with running_in_torch(net):
            torch.testing.assert_close(found, net(x))
