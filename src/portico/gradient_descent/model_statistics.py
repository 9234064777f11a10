"""What is told of a model during training, by the tags that AllenNLP has for TensorBoard."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

Values = Iterator[tuple[str, Any]]


def parameter_statistics(model: nn.Module) -> Values:
    """Yield mean and standard deviation of every parameter and gradient."""
    for name, parameter in model.named_parameters():
        yield from _moments("parameter", name, parameter.detach())
        gradient = parameter.grad
        if gradient is not None:
            # The present values of a sparse gradient.
            yield from _moments("gradient", name, gradient._values() if gradient.is_sparse else gradient)


def learning_rates(model: nn.Module, optimizer: torch.optim.Optimizer) -> Values:
    """Yield the learning rate of every parameter, 0 for a frozen one."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if "lr" in group:
                yield f"learning_rate/{names[parameter]}", group["lr"] * parameter.requires_grad


def relative_updates(model: nn.Module, param_updates: Mapping[str, torch.Tensor]) -> Values:
    """Yield the norm of each parameter's update over that of the parameter.

    Args:
        model: The model.
        param_updates: By how much a step changed each parameter, by name.
    """
    for name, parameter in model.named_parameters():
        norm = torch.linalg.vector_norm(parameter.detach()).cpu()
        update = torch.linalg.vector_norm(param_updates[name])
        yield f"gradient_update/{name}", update / (norm + torch.finfo(norm.dtype).tiny)


def _moments(kind: str, name: str, values: torch.Tensor) -> Values:
    if values.numel() > 0:
        yield f"{kind}_mean/{name}", values.mean()
    if values.numel() > 1:
        yield f"{kind}_std/{name}", values.std()
