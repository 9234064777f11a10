"""Commands on folders without permission, and with an output that is closed, full, or not Unicode."""

import ctypes
import os
import subprocess
import sys

import pytest

from fresh_process import environment
from portico.__main__ import COMMANDS

FULL = "error: The output cannot be written (No space left on device); send it elsewhere.\n"
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


def obey_permissions():
    """Let root be refused as any other user; called in the child."""
    libc = ctypes.CDLL(None)
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def portico(*command, shell="", folder, **variables):
    line = " ".join([sys.executable, "-m", "portico", *map(str, command), shell])
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        preexec_fn=obey_permissions,
    )


@pytest.mark.parametrize("command", [("sweep", "run"), ("replay", "run", "--step", "1"), ("report", "run")])
def test_a_folder_without_permission_is_named(command, tmp_path):
    (tmp_path / "run" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(
        "args: {}\npaths: {}\n_target_: portico.mrc.experiment.MRCExperiment\n"
    )
    (tmp_path / "run").chmod(0)
    try:
        ended = portico(*command, folder=tmp_path)
    finally:
        (tmp_path / "run").chmod(0o755)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith("error: "), ended.stderr
    assert "run" in ended.stderr
    assert "ermission" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.fixture
def sweep(tmp_path):
    job = '{"number": 0, "overrides": ["name=a"], "status": "finished", "goals": {"f1": "max"}, "seconds": 1.0'
    (tmp_path / "sweep" / "0").mkdir(parents=True)
    (tmp_path / "sweep" / "0" / "job.json").write_text(job + ', "objective": {"f1": 1.0}, "metrics": {"f1": 1.0}}')
    return tmp_path


@pytest.mark.parametrize(
    ("shell", "variables", "code", "says"),
    [
        ("| true", {}, 141, ""),
        # test_every_output.py has these without a shell.
        pytest.param(">&-", {}, 0, "", marks=pytest.mark.slow),
        pytest.param("> /dev/full", {}, 1, FULL, marks=pytest.mark.slow),
        pytest.param("> /dev/full", {"PYTHONUNBUFFERED": "1"}, 1, FULL, marks=pytest.mark.slow),
    ],
    ids=["reader gone", "closed", "full", "full and unbuffered"],
)
def test_the_output_of_a_sweep(shell, variables, code, says, sweep):
    ended = portico("sweep", "sweep", shell=shell, folder=sweep, **variables)
    assert (ended.returncode, ended.stderr) == (code, says)


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] * (name == "train")) for name in COMMANDS]
)
def test_help_of_every_command_on_a_full_device_and_a_closed_output(command, tmp_path):
    full = portico(command, "--help", shell="> /dev/full", folder=tmp_path, PYTHONUNBUFFERED="")
    assert (full.returncode, full.stderr) == (2 if command in ("verify", "preflight") else 1, FULL)
    full = portico(command, "--help", shell="> /dev/full", folder=tmp_path, PYTHONUNBUFFERED="1")
    assert (full.returncode, full.stderr) == (2 if command in ("verify", "preflight") else 1, FULL)
    closed = portico(command, "--help", shell=">&-", folder=tmp_path)
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize("option", ["--help", "--version", "--completion", ""])
def test_what_the_command_itself_prints_on_a_full_device(option, tmp_path):
    ended = portico(option, shell="> /dev/full", folder=tmp_path, PYTHONUNBUFFERED="1")
    assert (ended.returncode, ended.stderr) == (1, FULL)


def test_characters_that_the_output_does_not_have_are_printed_as_codes(tmp_path):
    prints = "from portico.errors import command; command(lambda arguments: print(chr(0x4E2D)))([])"
    ended = subprocess.run(
        [sys.executable, "-c", prints], env=environment(PYTHONIOENCODING="ascii"), capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, b"\\u4e2d\n")


def test_a_deleted_working_folder_is_a_sentence(tmp_path):
    (tmp_path / "gone").mkdir()
    line = f"rmdir ../gone; {sys.executable} -m portico sweep ."
    ended = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path / "gone", env=environment(), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: The current folder has been deleted; change to one that exists.\n"


@pytest.mark.slow
def test_a_path_that_is_no_utf8(sweep):
    name = os.fsdecode(b"sweep-\xff")
    (sweep / "sweep").rename(sweep / name)
    ended = portico("sweep", f"'{name}'", folder=sweep)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_help_of_train_on_a_full_device_does_not_blame_the_folder_of_the_run(tmp_path):
    """Hydra prints it without a buffer of Python, which others have until they end."""
    ended = portico("train", "--help", shell="> /dev/full", folder=tmp_path, PYTHONUNBUFFERED="1")
    assert (ended.returncode, ended.stderr) == (1, FULL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("sweep", "sweep"), ("report", "sweep"), ("demo", "sweep"), ("replay", "sweep", "--step", "1")]
)
@pytest.mark.parametrize("name", ["sweep", "sw\u00e9\u00e9p", os.fsdecode(b"sw\xff")])
def test_a_locale_without_unicode(command, name, sweep):
    """Names of files are then decoded as ASCII, and files are opened as ASCII unless an encoding is given."""
    (sweep / "sweep").rename(sweep / name)
    words = [f"'{name}'" if word == "sweep" and number else word for number, word in enumerate(command)]
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    ended = portico(*words, folder=sweep, **variables)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == 0 or (ended.returncode == 1 and "error: " in ended.stderr), ended.stderr
    assert command[0] != "sweep" or ended.returncode == 0, ended.stderr
