"""Libraries that subclass the trainer train the same weights under `portico run` as by themselves.

``pip install -e '.[dev,clients]'`` installs them; ``pytest -m clients`` runs these. Models are random and tiny, and
nothing is downloaded.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from portico.inspection.recorder import hash_of

SCRIPTS = Path(__file__).parent / "scripts"
# The scenario: the library that it needs, its script with arguments, and the checkpoints that it leaves.
CLIENTS = {
    "sentences": ("sentence_transformers", ["sentences.py"], (3, 6)),
    "setfit_few": ("setfit", ["setfit_few.py"], (6,)),
    "peft_lora": ("peft", ["peft_lora.py"], (3, 6)),
    "chronos_forecast": ("chronos", ["chronos_forecast.py"], (3, 6)),
    **{
        f"trl_{kind}": ("trl", ["trl_trainers.py", kind], (3, 6))
        for kind in ("sft", "dpo", "cpo", "orpo", "kto", "reward", "grpo", "rloo")
    },
}
_TIMES = ("runtime", "per_second", "_time")
pytestmark = pytest.mark.clients


def test_every_script_is_run():
    assert {path.name for path in SCRIPTS.glob("*.py")} == {command[0] for _, command, _ in CLIENTS.values()}


@pytest.mark.parametrize("scenario", CLIENTS)
def test_same_weights(scenario, tmp_path):
    library, command, steps = CLIENTS[scenario]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed; install it with pip install 'portico[clients]'")
    theirs = trained(command, tmp_path, "theirs")
    ours = trained(command, tmp_path, "ours", "-m", "portico", "run")
    for step in steps:
        files = [path.relative_to(theirs) for path in (theirs / f"checkpoint-{step}").rglob("*.safetensors")]
        assert files
        for name in files:
            first, second = load_file(theirs / name), load_file(ours / name)
            assert first.keys() == second.keys()
            assert all(torch.equal(first[key], second[key]) for key in first), name
        optimizers = [torch.load(run / f"checkpoint-{step}" / "optimizer.pt") for run in (theirs, ours)]
        assert hash_of(optimizers[0]) == hash_of(optimizers[1])
        assert history(theirs, step) == history(ours, step)


@pytest.mark.parametrize("scenario", CLIENTS)
def test_preflight_raises_no_alarm(scenario, tmp_path):
    library, (script, *arguments), _ = CLIENTS[scenario]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed; install it with pip install 'portico[clients]'")
    command = [sys.executable, "-m", "portico", "preflight", str(SCRIPTS / script), "out", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["sft", "dpo", "reward", "grpo"])
def test_trl_trains_the_same_weights_in_two_processes(kind, tmp_path):
    if find_spec("trl") is None:
        pytest.skip("trl is not installed; install it with pip install 'portico[clients]'")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    theirs = trained(["trl_trainers.py", kind], tmp_path, "theirs", *torchrun)
    ours = trained(["trl_trainers.py", kind], tmp_path, "ours", *torchrun, "-m", "portico", "run")
    for step in (3, 6):
        first, second = (load_file(run / f"checkpoint-{step}" / "model.safetensors") for run in (theirs, ours))
        assert all(torch.equal(first[name], second[name]) for name in first | second)
        assert history(theirs, step) == history(ours, step)


@pytest.mark.parametrize("kind", ["split_sft", "split_packed", "split_dpo", "split_kto"])
def test_trl_trains_split_sequences_like_whole_ones_and_resumes_on_one_process(kind, tmp_path):
    if find_spec("trl") is None or find_spec("peft") is None:
        pytest.skip("trl or peft is not installed; install them with pip install 'portico[clients]'")
    command, launcher = ["trl_trainers.py", kind], ["-m", "portico", "run"]
    whole = trained(command, tmp_path, "whole", *launcher)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    split = trained(command, tmp_path, "split", *torchrun, *launcher)
    shutil.copytree(split / "checkpoint-3", tmp_path / "out" / "checkpoint-3")
    resumed = trained(command, tmp_path, "resumed", *launcher)
    for run in (split, resumed):
        (weights,) = (path.relative_to(whole) for path in whole.glob("checkpoint-6/*.safetensors"))
        torch.testing.assert_close(load_file(run / weights), load_file(whole / weights), rtol=1e-6, atol=1e-6)
        for row, expected in zip(history(run, 6), history(whole, 6), strict=True):
            if run == resumed:
                # trl counts tokens from the start of each call.
                row |= {name: value for name, value in expected.items() if "num_tokens" in name}
            assert row == pytest.approx(expected, rel=2e-6, abs=2e-6)


def environment():
    path = f"{SCRIPTS.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def trained(command, folder, name, *launcher):
    """Run a script in one place, so that paths in its files agree, and return where its files are moved to."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", *launcher, str(SCRIPTS / command[0]), "out", *command[1:]],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ("replaces Trainer" in ended.stderr) == ("portico" in launcher)
    return (folder / "out").rename(folder / name)


def history(run, step):
    rows = json.loads((run / f"checkpoint-{step}" / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [{key: value for key, value in row.items() if not any(mark in key for mark in _TIMES)} for row in rows]
