"""`portico preflight`: what a script in rehearsal prints and leaves, also if it is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import late_faults
from fresh_process import environment, portico

SCRIPT = """
import numpy as np
from pathlib import Path
from models import ToyDataset, tiny_bert, toy_arguments
from transformers import Trainer, TrainingArguments

assert not Path("final").exists()  # also where it is resumed

def per_class(prediction):
    return {"f1": np.ones(3)}

whole = {"eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1}
args = toy_arguments("out", TrainingArguments, **whole)
data = {"train_dataset": ToyDataset(61), "eval_dataset": ToyDataset(40, seed=1)}
trainer = Trainer(tiny_bert(), args, compute_metrics=METRICS, **data)
trainer.train()
assert len(trainer.predict(ToyDataset(500)).predictions) == 500
trainer.save_model("final")
Path("notes.txt").write_text("overwritten")
"""
SOUND = SCRIPT.replace("METRICS", "lambda prediction: {'n': len(prediction.predictions)}")


UPLOADING = """
from huggingface_hub import create_repo
from transformers import Trainer

create_repo("mine/model", token="hf_none")
"""


def leftovers():
    return sorted(Path(tempfile.gettempdir()).glob("portico-preflight-*"))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def write(tmp_path):
    def write(source):
        (tmp_path / "script.py").write_text(source)
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "out" / "checkpoint-1").mkdir(parents=True)
        (tmp_path / "out" / "checkpoint-1" / "weights").write_text("mine")
        return contents(tmp_path)

    return write


def test_sound_script_passes_and_changes_nothing(write, tmp_path):
    before = write(SOUND)
    page, temporary = tmp_path.parent / "preflight.html", tmp_path.parent / f"{tmp_path.name}-temporary"
    temporary.mkdir()
    ended = portico("preflight", "--report", page, "script.py", folder=tmp_path, TMPDIR=str(temporary))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for stage in ("data", "first steps", "evaluation", "checkpoint", "resume", "rotation", "rest of the script"):
        assert re.search(rf"│ {stage} +│ passed", ended.stdout), ended.stdout
    assert re.search(r"Would take about .* \(62 steps of .*, 2 evaluations of .*, 2 checkpoints of ", ended.stdout)
    assert contents(tmp_path) == before
    assert not list(temporary.glob("portico-preflight-*"))
    assert "Nothing would fail" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_fault_of_a_script_is_named(write, tmp_path):
    before = write(SCRIPT.replace("METRICS", "per_class") + "raise KeyError('after the training')\n")
    ended = portico("preflight", "script.py", "--json", folder=tmp_path)
    assert ended.returncode == 1, ended.stderr
    first, last = (fault["sentence"] for fault in json.loads(ended.stdout)["faults"])
    assert "`compute_metrics` returns an array of shape [3] as `eval_f1`, and the trainer of transformers" in first
    assert re.fullmatch(r"The script \(script.py:\d+\) raises KeyError: 'after the training'.", last)
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("raise KeyError('mine')", [], "The script fails by itself before its training"),
        ("print('done')", [], "The script built no Trainer"),
        ("from transformers import Trainer", [], "The script built no Trainer"),
        (UPLOADING, [], "A rehearsal changes nothing at https://huggingface.co/api/repos/create, so the script"),
        ("", ["--rows", "0"], "`--rows 0` is not positive"),
    ],
)
def test_nothing_to_rehearse(source, arguments, message, tmp_path):
    (tmp_path / "script.py").write_text(source)
    ended = portico("preflight", *arguments, "script.py", folder=tmp_path)
    assert ended.returncode == 2
    assert message in ended.stderr


SEARCH = SOUND.replace(
    "trainer.train()\n",
    """
def new_model(trial):
    if trial is not None:
        trial.suggest_float("dropout", 0.0, 0.1)
    return tiny_bert()

def space(trial):
    return {"per_device_train_batch_size": trial.suggest_categorical("size", [1, 2, 3, 4])}

trainer = Trainer(model_init=new_model, args=args, **data)
trainer.hyperparameter_search(space, n_trials=30, backend="optuna")
trainer = Trainer(tiny_bert(), toy_arguments("out", TrainingArguments, max_steps=4))
""",
)


@pytest.mark.slow
def test_upload_of_a_callback_is_named_where_it_ends_the_rehearsal(write, tmp_path):
    callback = """
from huggingface_hub import create_repo
from transformers import TrainerCallback

class Upload(TrainerCallback):
    def on_save(self, *args, **kwargs):
        create_repo("mine/model", token="hf_none")

trainer.add_callback(Upload())
trainer.train()
"""
    write(SOUND.replace("trainer.train()\n", callback))
    ended = portico("preflight", "script.py", folder=tmp_path)
    assert "so the script ended there, in the stage 'checkpoint', and nothing after it was tried" in ended.stdout


def rehearse_as_script(maker, folder):
    """Rehearse a script that trains a trainer of the zoo."""
    source = f"import pathlib\nimport late_faults\n\nlate_faults.{maker}(pathlib.Path('out')).train()\n"
    (folder / "script.py").write_text(source)
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    ended = portico("preflight", "--json", "script.py", folder=folder, HF_TOKEN="", WANDB_MODE="disabled")
    assert contents(folder) == before
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("name", late_faults.FAULTS)
def test_each_late_fault_of_a_script_is_named_by_its_cause(name, tmp_path):
    ended = rehearse_as_script(f"FAULTS[{name!r}][0]", tmp_path)
    assert ended.returncode == 1, ended.stdout[-3000:] + ended.stderr[-3000:]
    said = [fault["sentence"] for fault in json.loads(ended.stdout)["faults"]]
    assert any(re.search(late_faults.FAULTS[name][1], sentence) for sentence in said), said


@pytest.mark.slow
@pytest.mark.parametrize("name", late_faults.SOUND)
def test_each_sound_script_raises_no_alarm(name, tmp_path):
    ended = rehearse_as_script(f"SOUND[{name!r}]", tmp_path)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]


@pytest.mark.slow
def test_search_is_rehearsed_in_one_trial(write, tmp_path):
    before = write(SEARCH)
    ended = portico("preflight", "script.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "in each of 30 trials" in ended.stdout
    assert re.search(r"│ resume +│ passed", ended.stdout)
    assert "The arguments of a trial are drawn at random" in ended.stdout
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["torchrun", "--nproc-per-node", 2],
        ["accelerate", "launch", "--cpu", "--num_processes", 2, "--main_process_port", 0],
        ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", 1],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_processes_of_a_launcher(launcher, write, tmp_path):
    before = write(SOUND)
    ended = portico("preflight", *launcher, "script.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"│ resume +│ passed", ended.stdout)
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 5, 9])
def test_kill_leaves_nothing(seconds, write, tmp_path):
    before, others = write(SOUND), leftovers()
    command = [sys.executable, "-m", "portico", "preflight", "script.py"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), start_new_session=True)
    time.sleep(seconds)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(100):
        if leftovers() == others and not any(child.is_running() for child in children):
            break
        time.sleep(0.2)
    assert leftovers() == others
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_command_line_in_rehearsal(tmp_path):
    settings = ["+experiment=text_classification", "debug=default", "args.use_cpu=true"]
    ended = portico("train", *settings, "mode=preflight", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"│ final save +│ passed", ended.stdout)
    assert not list(tmp_path.iterdir())
