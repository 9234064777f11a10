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


def torchrun(folder, *script, nodes=1, processes=2, restarts=0):
    """Run the script on nodes that are processes of this machine; return the outcome of the first process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--max_restarts", str(restarts)]
    command += ["--nproc_per_node", str(processes), "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}"]
    command += ["--rdzv_id", "run", "--local_addr", "127.0.0.1", str(SCRIPT), str(folder), *map(str, script)]
    Path(folder).mkdir()
    logs = [(Path(folder) / f"node-{node}.log").open("w+") for node in range(nodes)]
    runs = [subprocess.Popen(command, stdout=log, stderr=log, env=environment(OMP_NUM_THREADS="1")) for log in logs]
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


def test_restarted_run_resumes_from_last_checkpoint(whole, tmp_path):
    outcome = torchrun(tmp_path / "restarted", 7, restarts=1)
    assert outcome[2], "the second attempt found no checkpoint"
    assert_same(outcome, whole)
    assert (tmp_path / "restarted" / "node-0.log").read_text().count("RuntimeError: this process fails once") == 1
