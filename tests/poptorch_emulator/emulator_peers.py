"""Small models for the emulator, and the plain torch loops whose results it must reproduce."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import poptorch_emulator as poptorch
from poptorch_emulator.machine import held_ipus

Batches = list[tuple[Tensor, Tensor]]


class Perceptron(nn.Module):
    """Two layers and a mean squared error; returns outputs and loss."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(3, 8)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(8, 2)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.second(self.dropout(torch.tanh(self.first(x))))
        if labels is None:
            return logits
        return logits, functional.mse_loss(logits, labels)


class Falling(nn.Module):
    """A weight that every step lowers by the learning rate, if the rows are ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.weight + 0, poptorch.identity_loss((self.weight * x).mean(), "none")


class Calls(nn.Module):
    """Runs a function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def infer(function: Callable[..., Any], *args: Any, device_iterations: int = 1, **kwargs: Any) -> Any:
    """Return the results of a function that runs as a program."""
    return poptorch.inferenceModel(Calls(function), options(device_iterations))(*args, **kwargs)


def batches(num_calls: int, size: int, dtype: torch.dtype = torch.float64) -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 3, generator=generator, dtype=dtype),
            torch.randn(size, 2, generator=generator, dtype=dtype),
        )
        for _ in range(num_calls)
    ]


def options(iterations: int = 1, replicas: int = 1, accumulation: int = 1, **modes: Any) -> poptorch.Options:
    made = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation)
    if "output" in modes:
        made.outputMode(modes["output"])
    if "reduction" in modes:
        made.Training.accumulationAndReplicationReductionType(modes["reduction"])
    return made


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def plain_weights(make_optimizer: Callable[[Any], Any], data: Batches, iterations: int) -> dict[str, Tensor]:
    """Train on whole global batches, `iterations` updates per call, halving the rate after every call."""
    model = Perceptron().double()
    optimizer = make_optimizer(model.parameters())
    for x, labels in data:
        for part_x, part_labels in zip(x.chunk(iterations), labels.chunk(iterations), strict=True):
            optimizer.zero_grad()
            model(part_x, part_labels)[1].backward()
            optimizer.step()
        _halve(optimizer)
    return weights(model)


def emulated_weights(
    make_optimizer: Callable[[Any], Any], data: Batches, program_options: poptorch.Options
) -> dict[str, Tensor]:
    """Train the same on the emulator, in double precision."""
    model = Perceptron().double()
    optimizer = make_optimizer(model.parameters())
    with poptorch.configured(keeps_float64=True):
        executor = poptorch.trainingModel(model, program_options, optimizer)
        for x, labels in data:
            executor(x, labels)
            _halve(optimizer)
            executor.setOptimizer(optimizer)
        executor.destroy()
    return weights(model)


def _halve(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] /= 2


@contextmanager
def free_ipus(number: int) -> Iterator[None]:
    """Leave a number of IPUs free, however many the programs of other tests still hold."""
    gc.collect()
    with poptorch.configured(num_ipus=sum(held_ipus.values()) + number):
        yield
