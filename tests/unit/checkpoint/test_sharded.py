"""Optimizer states that are read for the parameters of another run."""

import io
from pathlib import Path, PosixPath

import torch

from portico.checkpoint.sharded import shard_optimizer_state
from portico.trust.files import _ShardTable


def test_groups_without_parameters_are_passed_over():
    """Where a model's biases are frozen, the group without weight decay is empty."""
    model = torch.nn.Linear(2, 2)
    weight, bias = model.parameters()
    groups = [{"params": [weight]}, {"params": []}, {"params": [bias], "lr": 0.5}, {"params": []}]
    trained, fresh = (torch.optim.Adam([dict(group) for group in groups], lr=0.1) for _ in range(2))
    model(torch.ones(1, 2)).sum().backward()
    trained.step()
    fresh.load_state_dict(shard_optimizer_state(model, fresh, trained.state_dict(), Path("folder")))
    torch.testing.assert_close(fresh.state_dict(), trained.state_dict(), rtol=0, atol=0)


def test_table_of_python_3_13_is_read():
    assert _ShardTable(io.BytesIO(b"cpathlib._local\nPosixPath\n.")).load() is PosixPath
