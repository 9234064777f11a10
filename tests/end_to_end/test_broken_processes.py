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
        pytest.param("ddp", 2, 0, "hang", "Process 1 ended with exit code 1", marks=slow),
        pytest.param("ddp", 2, 1, "hang", HANGS, marks=slow),
        pytest.param("ddp", 3, 2, "SIGSTOP", HANGS, marks=slow),
        pytest.param("ddp", 2, 0, "alone", WRONG_CALL, marks=slow),
        pytest.param("ddp", 3, 1, "leave", "Process 1 ended before the processes were connected", marks=slow),
        pytest.param("ddp_spawn", 3, 1, "SIGKILL", "Process 1 ended with exit code -9", marks=slow),
        pytest.param("ddp_spawn", 2, 0, "error", "this process breaks off", marks=slow),
        pytest.param("ddp_spawn", 3, 1, "error", "this process breaks off", marks=slow),
        pytest.param("ddp_spawn", 2, 0, "hang", HANGS, marks=slow),
        pytest.param("ddp_spawn", 3, 1, "hang", HANGS, marks=slow),
        pytest.param("ddp_spawn", 2, 0, "SIGSTOP", HANGS, marks=slow),
        pytest.param("ddp_spawn", 3, 2, "SIGSTOP", HANGS, marks=slow),
        pytest.param("ddp_spawn", 2, 1, "SIGTERM", None, marks=slow),
        pytest.param("ddp_spawn", 2, 1, "parent", None, marks=slow),
        pytest.param("ddp_fork", 3, 0, "parent", None, marks=slow),
        pytest.param("ddp_fork", 2, 0, "SIGKILL", "Process 0 ended with exit code -9", marks=slow),
        pytest.param("ddp_notebook", 3, 2, "hang", HANGS, marks=slow),
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
    printed = break_off(started_by, processes, rank, how, "step", tmp_path)
    assert message is None or message in printed, printed
    started = [file for file in tmp_path.iterdir() if file.name.isdigit()]
    # The others start workers, which do not run the script.
    assert len(started) == processes + (started_by not in ("ddp", "torchrun")), printed


@slow
@pytest.mark.parametrize(
    ("started_by", "where", "rank", "how", "message"),
    [
        ("ddp", "evaluate", 1, "error", "this process breaks off"),
        ("ddp", "save", 0, "hang", HANGS),
        ("ddp", "load", 0, "hang", HANGS),
        ("ddp", "load", 1, "hang", HANGS),
        ("ddp_spawn", "evaluate", 0, "SIGSTOP", HANGS),
        ("ddp_spawn", "predict", 1, "error", "this process breaks off"),
        ("ddp_spawn", "save", 0, "SIGKILL", "Process 0 ended with exit code -9"),
        ("ddp_spawn", "save", 0, "hang", HANGS),
        ("ddp_spawn", "save", 1, "error", "this process breaks off"),
        ("ddp_spawn", "load", 0, "SIGKILL", "is killed by signal: Killed"),
        ("ddp_spawn", "load", 0, "SIGSTOP", HANGS),
        ("ddp_spawn", "load", 1, "hang", HANGS),
        ("ddp_spawn", "load", 1, "error", "this process breaks off"),
        ("torchrun", "predict", 0, "hang", HANGS),
        ("torchrun", "load", 0, "SIGSTOP", HANGS),
    ],
)
def test_all_processes_end_wherever_one_breaks_off(started_by, where, rank, how, message, tmp_path):
    printed = break_off(started_by, 2, rank, how, where, tmp_path)
    assert message in printed, printed


def break_off(started_by, processes, rank, how, where, folder):
    """Run the script, wait until all of its processes are gone, and return what they printed."""
    own = started_by != "torchrun"
    start = [sys.executable] if own else [*TORCHRUN, "--nproc_per_node", str(processes)]
    placement = [started_by, str(processes)] if own else []
    if how == "parent":
        # As a shell script does to what it runs in the background.
        start = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *start]
    command = [*start, str(SCRIPT), str(folder), str(rank), how, where, *placement]
    path = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    log = folder / "output"
    with log.open("w") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as run:
        try:
            _wait_for(folder / "broken", run)
            # From the fault on.
            end = time.monotonic() + 30
            assert run.wait(timeout=30) != 0
        finally:
            run.kill()
    printed = log.read_text()
    if how == "error":
        # Once, and where portico started the processes the first says nothing about connections that broke after it.
        assert len(re.findall("^.*RuntimeError: this process breaks off", printed, re.MULTILINE)) == 1, printed
        assert not own or re.search(r"^(\[rank0\]: )?RuntimeError.*Connection closed", printed, re.MULTILINE) is None
    assert not (folder / "finished").exists()
    started = [int(file.name) for file in folder.iterdir() if file.name.isdigit()]
    assert all(_is_gone(process, within=end - time.monotonic()) for process in started)
    return printed


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
