"""torchrun: two nodes that meet over a rendezvous, and a restart after a failure."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fresh_process import environment

SCRIPT = Path(__file__).with_name("elastic_run.py")
pytestmark = pytest.mark.slow


def torchrun(folder, *script, nodes=1, processes=2, restarts=0, **variables):
    """Run the script on nodes that are processes of this machine; return the outcome of the first process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--max_restarts", str(restarts)]
    command += ["--nproc_per_node", str(processes), "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}"]
    command += ["--rdzv_id", "run", "--local_addr", "127.0.0.1", str(SCRIPT), str(folder), *map(str, script)]
    Path(folder).mkdir()
    logs = [(Path(folder) / f"node-{node}.log").open("w+") for node in range(nodes)]
    started_in = environment(OMP_NUM_THREADS="1", **variables)
    runs = [subprocess.Popen(command, stdout=log, stderr=log, env=started_in) for log in logs]
    try:
        codes = [run.wait(timeout=400) for run in runs]
    finally:
        for run, log in zip(runs, logs, strict=True):
            run.kill()
            log.close()
    assert not any(codes), (Path(folder) / "node-0.log").read_text()[-4000:]
    return torch.load(Path(folder) / "outcome.pt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return torchrun(tmp_path_factory.mktemp("whole") / "one")


def assert_same(outcome, whole):
    for name, tensor in whole[0].items():
        assert torch.equal(outcome[0][name], tensor)
    assert outcome[1] == whole[1]
    assert outcome[3] == whole[3] == 2


def test_two_nodes_train_as_two_processes_of_one(whole, tmp_path):
    assert_same(torchrun(tmp_path / "two", nodes=2, processes=1), whole)


@pytest.mark.parametrize("nodes", [1, 2])
def test_restarted_run_resumes_from_last_checkpoint(nodes, whole, tmp_path):
    # On several machines torch's own setting is needed.
    settings = {} if nodes == 1 else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    outcome = torchrun(tmp_path / "restarted", 7, nodes=nodes, processes=2 // nodes, restarts=1, **settings)
    assert outcome[2], "the second attempt found no checkpoint"
    assert_same(outcome, whole)
    logs = [(tmp_path / "restarted" / f"node-{node}.log").read_text() for node in range(nodes)]
    assert "".join(logs).count("RuntimeError: this process fails once") == 1
    assert "cannot restart processes" not in "".join(logs)


def test_restarts_on_several_machines_need_a_setting(tmp_path):
    torchrun(tmp_path / "warned", nodes=2, processes=1, restarts=1)
    logs = [(tmp_path / "warned" / f"node-{node}.log").read_text() for node in range(2)]
    assert "".join(logs).count("Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where torchrun starts") == 1
