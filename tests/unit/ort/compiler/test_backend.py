"""What is saved for a backward pass, and for how long."""

import weakref

import pytest
import torch
from torch import nn

import portico.ort
from portico.ort.api import get_compiled_call
from portico.ort.runtime import Program
from releases import since_torch


class Deep(nn.Module):
    """Has a backward of several stages, and tells how much of what was saved is alive in the course of it."""

    def __init__(self, num_layers):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 8))
            for _ in range(num_layers)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Folding(nn.Module):
    """Has results of a size that cannot be computed for every size of its input."""

    def forward(self, x):
        rows = x.tanh().view(-1, len(x) // (x.shape[1] - 64), 1)
        return rows.sin().cos()


def test_a_size_that_is_not_defined_for_every_input_is_no_obstacle():
    net = portico.ort.compile(Folding())
    for columns in (65, 66):
        x = torch.linspace(-1, 1, 8 * columns).view(8, columns).requires_grad_()
        (grad,) = torch.autograd.grad(net(x).sum(), x)
        (expected,) = torch.autograd.grad(Folding()(x).sum(), x)
        torch.testing.assert_close(grad, expected)


def gradients(net, rows):
    torch.manual_seed(1)
    net.zero_grad()
    net(torch.linspace(-2, 2, rows * 8).view(rows, 8)).square().sum().backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


@pytest.fixture(scope="module")
def deep():
    return portico.ort.compile(Deep(12))


def test_a_long_backward_has_stages(deep):
    gradients(deep, 5)
    forward, backward = get_compiled_call(deep).report.graphs
    assert (forward.num_sessions, backward.num_sessions > 2) == (1, True)


@since_torch("2.13")
@pytest.mark.parametrize("rows", [5, 3])
def test_stages_compute_the_gradients_of_one_backward(deep, rows):
    for ours, theirs in zip(gradients(deep, rows), gradients(Deep(12), rows), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_backward_in_stages_can_be_repeated(deep):
    torch.manual_seed(1)
    deep.zero_grad()
    loss = deep(torch.ones(4, 8)).square().sum()
    loss.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in deep.parameters()]
    loss.backward()
    for parameter, grad in zip(deep.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * grad)


@since_torch("2.13")
def test_what_was_saved_is_freed_while_the_backward_runs(monkeypatch):
    read, alive, rows = [], [], 6
    run = Program.__call__

    def watched(program, *args):
        alive.append([reference() is not None for reference in read])
        read.extend(weakref.ref(value) for value in args if isinstance(value, torch.Tensor) and rows in value.shape)
        return run(program, *args)

    monkeypatch.setattr(Program, "__call__", watched)
    net = portico.ort.compile(Deep(12))
    loss = net(torch.ones(rows, 8, requires_grad=True)).square().sum()
    read.clear()
    alive.clear()
    loss.backward()
    num_read_first = len(alive[1])
    assert num_read_first > 5
    assert not any(alive[-1][:num_read_first])
