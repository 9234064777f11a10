import pytest
import torch
from torch import nn

from portico import InputError
from portico.ort.optim import FusedAdamW


def trained(optimizer_class, steps=20, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    unused = nn.Parameter(torch.ones(2))
    optimizer = optimizer_class([{"params": net.parameters()}, {"params": [unused], "weight_decay": 0.0}], **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    x = torch.randn(9, 5)
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        schedule.step()
    return net, optimizer


@pytest.mark.parametrize("options", [{}, {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}])
def test_it_steps_as_torch_does(options):
    (ours, our_optimizer), (theirs, their_optimizer) = (
        trained(FusedAdamW, **options),
        trained(torch.optim.AdamW, **options),
    )
    for mine, his in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, his, atol=1e-6, rtol=1e-5)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(our_optimizer.state[mine][name], their_optimizer.state[his][name])


def test_it_continues_from_the_state_of_torchs():
    net, optimizer = trained(torch.optim.AdamW, lr=0.1)
    fused = FusedAdamW(optimizer.param_groups[0]["params"])
    state = optimizer.state_dict()
    fused.load_state_dict({**state, "param_groups": state["param_groups"][:1]})
    fused.step()
    weights = [parameter.clone() for parameter in net.parameters()]
    expected, again = trained(torch.optim.AdamW, lr=0.1)
    again.step()
    torch.testing.assert_close(weights, list(expected.parameters()), atol=1e-6, rtol=1e-5)


def test_it_refuses_other_dtypes():
    with pytest.raises(InputError, match=r"takes float32 parameters on the CPU, but one is torch.float64"):
        FusedAdamW([nn.Parameter(torch.ones(2, dtype=torch.float64))])
