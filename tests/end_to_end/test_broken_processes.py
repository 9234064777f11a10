"""When one process of a run breaks off, the others end too; nobody waits for it for ever."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("breaking_run.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
WRONG_CALL = "call methods of the trainer on every process"
HANGS = "Another process hangs, or needs more seconds for something than `ddp_timeout` allows"
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("started_by", "processes", "rank", "how", "message"),
    [
        ("ddp", 2, 0, "error", "this process breaks off"),
        pytest.param("ddp", 3, 1, "error", "this process breaks off", marks=slow),
        pytest.param("ddp", 2, 0, "SIGINT", None, marks=slow),
        pytest.param("ddp", 2, 0, "SIGTERM", None, marks=slow),
        pytest.param("ddp", 2, 1, "SIGTERM", None, marks=slow),
        pytest.param("ddp", 3, 2, "SIGKILL", "Process 2 ended with exit code -9", marks=slow),
        pytest.param("ddp", 2, 0, "hang", HANGS, marks=slow),
        pytest.param("ddp", 2, 1, "hang", HANGS, marks=slow),
        pytest.param("ddp", 3, 2, "SIGSTOP", HANGS, marks=slow),
        pytest.param("ddp", 2, 0, "alone", WRONG_CALL, marks=slow),
        pytest.param("ddp", 3, 1, "leave", "Process 1 ended before the processes were connected", marks=slow),
        pytest.param("ddp_spawn", 3, 1, "SIGKILL", "terminated with signal SIGKILL", marks=slow),
        pytest.param("torchrun", 2, 0, "SIGTERM", None, marks=slow),
        pytest.param("torchrun", 2, 1, "SIGINT", None, marks=slow),
        pytest.param("torchrun", 3, 1, "error", "this process breaks off", marks=slow),
        pytest.param("torchrun", 3, 0, "SIGKILL", "Signal 9", marks=slow),
        pytest.param("torchrun", 2, 1, "hang", HANGS, marks=slow),
        pytest.param("torchrun", 3, 2, "SIGSTOP", HANGS, marks=slow),
        pytest.param("torchrun", 3, 0, "alone", WRONG_CALL, marks=slow),
    ],
)
def test_all_processes_end_when_one_breaks_off(started_by, processes, rank, how, message, tmp_path):
    own = started_by != "torchrun"
    start = [sys.executable] if own else [*TORCHRUN, "--nproc_per_node", str(processes)]
    command = [*start, str(SCRIPT), str(tmp_path), str(rank), how, *([started_by, str(processes)] if own else [])]
    path = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    log = tmp_path / "output"
    with log.open("w") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as run:
        try:
            _wait_for(tmp_path / "broken", run)
            # From the fault on.
            end = time.monotonic() + 30
            assert run.wait(timeout=30) != 0
        finally:
            run.kill()
    printed = log.read_text()
    assert message is None or message in printed, printed
    if how == "error":
        # Once, and where portico started the processes nothing about connections that broke after it.
        assert len(re.findall("^.*RuntimeError: this process breaks off", printed, re.MULTILINE)) == 1
        assert not own or re.search(r"\[rank0\]: RuntimeError.*Connection closed", printed) is None
    started = [int(file.name) for file in tmp_path.iterdir() if file.name.isdigit()]
    assert len(started) == processes + (started_by == "ddp_spawn"), printed
    assert not (tmp_path / "finished").exists()
    assert all(_is_gone(process, within=end - time.monotonic()) for process in started)


def _wait_for(file, run):
    while not file.exists() and run.poll() is None:
        time.sleep(0.1)
    assert file.exists(), "the run ended before the fault"


def _is_gone(process, within):
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
