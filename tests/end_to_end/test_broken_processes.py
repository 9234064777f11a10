"""When one process of a run breaks off, the others end too; nobody waits for it for ever."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("breaking_run.py")
STARTED_BY = {
    "portico": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("started_by", "rank", "how"),
    [
        ("portico", 0, "error"),
        pytest.param("portico", 1, "error", marks=slow),
        pytest.param("portico", 0, "SIGINT", marks=slow),
        pytest.param("portico", 0, "SIGTERM", marks=slow),
        pytest.param("portico", 1, "SIGTERM", marks=slow),
        pytest.param("torchrun", 0, "SIGTERM", marks=slow),
        pytest.param("torchrun", 1, "SIGINT", marks=slow),
        pytest.param("torchrun", 1, "error", marks=slow),
    ],
)
def test_all_processes_end_when_one_breaks_off(started_by, rank, how, tmp_path):
    strategy = ["ddp"] if started_by == "portico" else []
    command = [*STARTED_BY[started_by], str(SCRIPT), str(tmp_path), str(rank), how, *strategy]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, timeout=240, capture_output=True, text=True, check=False)
    processes = [int(file.name) for file in tmp_path.iterdir() if file.name.isdigit()]
    assert len(processes) == 2, ended.stderr
    assert ended.returncode != 0
    assert not (tmp_path / "finished").exists()
    if how == "error":
        assert "this process breaks off" in ended.stderr
    assert all(_is_gone(process, within=20) for process in processes)


def _is_gone(process, within):
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
