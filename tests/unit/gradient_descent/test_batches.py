"""The number of batches, and the share of each process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from portico.compat.transformers import has_length
from portico.gradient_descent import ConfigurationError
from portico.gradient_descent.batches import count_epochs, set_epoch, share_batches, steps_per_epoch


def shares(loader, world_size=2):
    return [
        share_batches(loader, SimpleNamespace(world_size=world_size, process_index=rank)) for rank in range(world_size)
    ]


def test_processes_get_equal_shares(caplog):
    loader = DataLoader(range(10), batch_size=2)
    first, second = shares(loader)
    assert [batch.tolist() for batch in first] == [[0, 1], [4, 5]]
    assert [batch.tolist() for batch in second] == [[2, 3], [6, 7]]
    assert len(first) == len(second) == steps_per_epoch(loader, 1, world_size=2) == 2
    assert "cannot be shared evenly by 2 processes: 1 batches of this epoch are not used" in caplog.text


def test_share_of_loader_without_length():
    share = shares(iter(range(4)))[0]
    assert list(share) == [0, 2]
    assert not has_length(share)


def test_loader_with_distributed_sampler_is_not_shared():
    sampler = DistributedSampler(range(10), num_replicas=2, rank=0)
    loader = DataLoader(range(10), sampler=sampler)
    assert all(share is loader for share in shares(loader))
    assert shares(loader, world_size=1)[0] is loader


def trained(kind, folder, *, stop_at=0):
    """Train in separate processes; return their results, or ``None`` if they were stopped."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("training_in_processes.py")), kind, str(folder), str(stop_at)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == (3 if stop_at else 0), done.stderr
    return None if stop_at else json.loads((folder / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "steps"), [("", 12), ("-accumulating", 6)])
def test_two_processes_equal_one_that_accumulates(tmp_path, suffix, steps):
    one, two = (trained(f"{kind}{suffix}", tmp_path / kind) for kind in ("one", "two"))
    assert one == two
    assert one["steps"] == steps
    assert one["rows"] == 24


@pytest.mark.slow
def test_two_processes_resume_within_an_epoch(tmp_path):
    kind = "two-accumulating"
    whole = trained(kind, tmp_path / "whole")
    trained(kind, tmp_path / "stopped", stop_at=5)
    assert (tmp_path / "stopped" / "training_state_e1_b1.th").is_file()
    assert trained(kind, tmp_path / "stopped") == whole


def test_every_process_needs_a_batch():
    with pytest.raises(ConfigurationError, match="`data_loader` has fewer batches than the 2 processes"):
        count_epochs([], num_epochs=1, num_gradient_accumulation_steps=1, world_size=2)


def test_every_sampler_is_told_the_epoch():
    sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
    loader = DataLoader(range(8), batch_sampler=BatchSampler(sampler, batch_size=2, drop_last=False))
    first = torch.cat(list(loader)).tolist()
    set_epoch(loader, 1)
    assert sampler.epoch == 1
    assert torch.cat(list(loader)).tolist() != first
