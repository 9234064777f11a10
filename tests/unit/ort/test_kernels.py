"""Operators that ONNX, or ONNX Runtime, has not for some integers stay with ATen."""

import pytest
import torch
from torch import nn

import portico.ort
from portico import InputError
from portico.ort.api import compiled_call, running_in_torch


class Masked(nn.Module):
    """Computes a mask in bytes, of which ONNX has no sign."""

    def forward(self, x):
        return x * aten_of_bytes(x > 0)


def aten_of_bytes(mask):
    return -(mask.to(torch.uint8) * 3)


def test_what_has_no_kernels_for_bytes_runs_in_torch(caplog):
    model, x = portico.ort.compile(Masked()), torch.randn(3, 4)
    with running_in_torch(model):
        expected = model(x)
    assert torch.equal(model(x), expected)
    assert "aten.neg.default has no lowering to ONNX for these tensors; it runs in torch." in caplog.text
    assert "aten.gt.Scalar" not in compiled_call(model).report.fallbacks


def test_strict_names_what_has_no_kernels():
    with pytest.raises(InputError, match=r"`strict=True`, but the model uses aten\.\w+\.\w+.* for these tensors"):
        portico.ort.compile(Masked(), strict=True)(torch.randn(3, 4))
