"""One step of a model in ONNX Runtime, against the same step in eager mode."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from portico.ort.api import running_in_torch


def loss_and_gradients(model: nn.Module, batch: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of one step and every gradient; dropout is drawn from the same seed each time."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(**batch)["loss"]
    loss.backward()
    return loss.item(), {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def assert_gradients_are_eager(model: nn.Module, batches: Iterable[dict[str, Any]], tolerance: float) -> None:
    """Compare losses and gradients of a compiled model; the tolerance is relative to the largest gradient."""
    for batch in batches:
        with running_in_torch(model):
            loss, gradients = loss_and_gradients(model, batch)
        found_loss, found = loss_and_gradients(model, batch)
        assert found_loss == pytest.approx(loss, abs=tolerance)
        assert found.keys() == gradients.keys()
        largest = max(gradient.abs().max() for gradient in gradients.values())
        for parameter, gradient in gradients.items():
            assert (found[parameter] - gradient).abs().max() <= tolerance * largest, parameter
