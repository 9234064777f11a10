import math
import re
import subprocess
import sys

import pytest

from fresh_process import environment

SCRIPT = """
import torch
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments, TrainerCallback


class Broken(Line):
    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        # One point of the data costs far more than the others.
        if labels is not None and (x[:, 0] == Points().x[3, 0]).any():
            outputs["loss"] = outputs["loss"] * 50
        return outputs


args = toy_arguments("out", TrainingArguments, save_strategy="steps", save_steps=3, learning_rate=0.001)
Trainer(Broken(), args, train_dataset=Points()).train()
print("the script goes on")
"""


def portico(*command, folder):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "portico", *command],
        cwd=folder,
        env=environment(COLUMNS="200"),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    (folder / "script.py").write_text(SCRIPT)
    ended = portico("run", "script.py", folder=folder)
    assert ended.returncode == 0, ended.stderr
    return folder


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_opens_the_step_of_the_spike(folder):
    before = files(folder / "out")
    ended = portico("replay", "script.py", "--from-spike", "--report", "step.html", folder=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the script goes on" not in ended.stdout
    assert files(folder / "out") == before
    assert re.search(r"Step \d+\. Replayed from .*; the loss logged at step \d+ is the recorded one", ended.stdout)
    index, loss, share = re.search(r"│ (\d+) +│ (\S+) +│ (\S+)% ", ended.stdout).groups()
    assert index == "3"
    assert float(share) > 80
    assert math.isfinite(float(loss))
    assert "│ linear │" in ended.stdout
    assert "first output that is not finite: none" in ended.stdout
    page = (folder / "step.html").read_text(encoding="utf-8")
    assert "<td>3</td>" in page
    assert "Training step" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "99"], "error: The training ended before step 99; its last step is 10."),
        (["--step", "0"], "error: `--step 0` is not positive"),
        ([], "error: Give either the number of a step with --step, or --from-spike."),
    ],
)
def test_bad_input(arguments, message, folder):
    ended = portico("replay", "script.py", *arguments, folder=folder)
    assert ended.returncode == 1
    assert message in ended.stderr


@pytest.mark.slow
def test_every_step_has_the_examples_and_the_loss_of_the_run(folder):
    for step in (1, 5, 6, 10):
        ended = portico("replay", "script.py", f"--step={step}", folder=folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert f"the loss logged at step {step} is the recorded one" in ended.stdout
        assert len(re.findall(r"│ \d+ +│ \S+ +│ \S+% ", ended.stdout)) == 2
