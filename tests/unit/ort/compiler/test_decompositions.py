"""Dropout draws the random numbers of eager mode."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import portico.ort
from portico.ort.api import get_compiled_call


class Dropping(nn.Module):
    """Drops by torch's own operator, and reads its mask."""

    def __init__(self, p, train=True):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 6)
        self.options = (p, train)

    def forward(self, x):
        dropped, mask = torch.native_dropout(self.linear(x), *self.options)
        return dropped, mask, (~mask).sum()


def run(net):
    torch.manual_seed(1)
    outputs = net(torch.ones(5, 4))
    outputs[0].square().sum().backward()
    return outputs, net.linear.weight.grad


@pytest.mark.parametrize(("p", "train"), [(0.3, True), (0.3, None), (0.3, False), (0.0, False), (1.0, True)])
def test_torchs_own_operator_returns_a_mask(p, train):
    outputs, grad = run(portico.ort.compile(Dropping(p, train)))
    expected, expected_grad = run(Dropping(p, train))
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(grad, expected_grad)


def test_a_dropout_keeps_bytes_for_its_backward():
    net = portico.ort.compile(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3)))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        loss = net(torch.ones(5, 4)).sum()
    loss.backward()
    assert [tensor.dtype for tensor in kept if tensor.shape == (5, 6)] == [torch.bool]


class Recomputing(nn.Module):
    """Keeps nothing of its dropping layers for the backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def test_activation_checkpointing_drops_the_same_again():
    gradients, states = [], []
    for net in (portico.ort.compile(Recomputing()), Recomputing()):
        torch.manual_seed(1)
        for rows in (5, 3):
            net(torch.ones(rows, 4)).square().sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
        states.append(torch.get_rng_state())
    torch.testing.assert_close(*gradients)
    assert torch.equal(*states)


class Permuting(nn.Module):
    """Drops from what does not lie in memory in the order of its dimensions."""

    def __init__(self, order, is_cut):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 6)
        self.order, self.is_cut = order, is_cut

    def forward(self, x):
        permuted = self.linear(x).permute(self.order)
        return nn.functional.dropout(permuted[1:] if self.is_cut else permuted, 0.4)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (0, 2, 1)])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_transposed_tensor_is_dropped_from_in_the_order_of_its_memory(order, is_cut):
    net = portico.ort.compile(Permuting(order, is_cut))
    for rows in (5, 3):
        outcomes = []
        for each in (net, Permuting(order, is_cut)):
            torch.manual_seed(1)
            dropped = each(torch.arange(1.0, rows * 12 + 1).view(rows, 3, 4))
            dropped.square().sum().backward()
            outcomes.append((dropped.detach(), each.linear.weight.grad, torch.get_rng_state()))
            each.zero_grad()
        torch.testing.assert_close(*outcomes)
    assert len(get_compiled_call(net).report.graphs) == 2
