"""Batches dealt out to several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader, DistributedSampler

from portico.gradient_descent.epoch_plan import steps_per_epoch
from portico.gradient_descent.sharing import dealt


def shares(loader, world_size=2):
    return [dealt(loader, SimpleNamespace(world_size=world_size, process_index=rank)) for rank in range(world_size)]


def test_every_process_gets_as_many_batches(caplog):
    loader = DataLoader(range(10), batch_size=2)
    first, second = shares(loader)
    assert [batch.tolist() for batch in first] == [[0, 1], [4, 5]]
    assert [batch.tolist() for batch in second] == [[2, 3], [6, 7]]
    assert len(first) == len(second) == steps_per_epoch(loader, 1, world_size=2) == 2
    assert "cannot be dealt out evenly to 2 processes: 1 batches of this epoch are not used" in caplog.text


def test_a_loader_without_a_length_has_none_when_dealt():
    share = shares(iter(range(4)))[0]
    assert list(share) == [0, 2]
    assert not hasattr(share, "__len__")


def test_what_is_divided_already_is_left_alone():
    sampler = DistributedSampler(range(10), num_replicas=2, rank=0)
    loader = DataLoader(range(10), sampler=sampler)
    assert all(share is loader for share in shares(loader))
    assert shares(loader, world_size=1)[0] is loader


@pytest.mark.slow
def test_two_processes_make_the_steps_of_an_accumulating_one(tmp_path):
    # Before there is more than one process, the facade refuses to start them.
    pytest.importorskip("portico.processes")
    results = {}
    for kind in ("one", "two"):
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("training_in_processes.py")), kind, str(tmp_path / kind)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        results[kind] = json.loads((tmp_path / kind / "result.json").read_text())
    assert results["one"] == results["two"]
