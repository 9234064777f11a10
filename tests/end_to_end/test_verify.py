"""`portico verify`: identical scripts, scripts broken on purpose, and a tolerance."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fresh_process import environment

BROKEN = Path(__file__).parent / "broken_scripts"
SCRIPT = """
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments

args = toy_arguments("out", TrainingArguments, save_strategy="steps", save_steps=2, eval_strategy="epoch")
trainer = Trainer(Line(), args, train_dataset=Points(), eval_dataset=Points(4))
trainer.train()
"""


def verify(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "portico", "verify", *map(str, arguments)],
        cwd=folder,
        env=environment(COLUMNS="200"),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return "script.py"


def test_identical_script(script, tmp_path):
    ended = verify(script, "--once", "--steps", 6, "--report", "page.html", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("identical for 6 steps, 3 checkpoints, 2 evaluations\n")
    assert not (tmp_path / "out").exists()
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Verification" in page
    assert "identical for 6 steps" in page
    assert page.count("<svg") == 2
    assert not re.search(r"(src|href)=.?http", page)


def test_folder_in_use_is_left_alone(script, tmp_path):
    (tmp_path / "kept/transformers").mkdir(parents=True)
    (tmp_path / "kept/transformers/mine.txt").write_text("mine")
    ended = verify(script, "--keep", "kept", folder=tmp_path)
    assert ended.returncode == 2
    assert "`--keep kept` is in use; name an empty folder" in ended.stderr
    assert (tmp_path / "kept/transformers/mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "error: missing.py: no such file"),
        (["script.py", "--steps", "0"], "error: `--steps 0` is not positive"),
        (["script.py", "--against", "seed=2"], "error: `--against seed=2` is unknown; give one of strategy=VALUE"),
    ],
)
def test_bad_input(arguments, message, script, tmp_path):
    ended = verify(*arguments, folder=tmp_path)
    assert ended.returncode == 2
    assert message in ended.stderr


@pytest.mark.slow
def test_script_that_fails_or_trains_nothing_by_itself(tmp_path):
    (tmp_path / "fails.py").write_text("raise KeyError('mine')")
    ended = verify("fails.py", folder=tmp_path)
    assert ended.returncode == 2
    assert "KeyError: 'mine'" in ended.stderr
    assert "error: The script fails by itself under transformers" in ended.stderr
    (tmp_path / "needs.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--name', required=True)\nparser.parse_args()\n"
    )
    ended = verify("needs.py", "--steps", 3, folder=tmp_path)
    assert ended.returncode == 2
    assert "needs.py: error: the following arguments are required: --name" in ended.stderr
    (tmp_path / "nothing.py").write_text("print('done')")
    ended = verify("nothing.py", folder=tmp_path)
    assert ended.returncode == 2
    assert "nothing.py built no Trainer" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "difference", "cause"),
    [
        ("seeds_in_a_callback", "loss at step 4", "the callback Reseeding.on_step_end draws random numbers"),
        (
            "overrides_the_loop",
            "exit before the first step",
            "an override that is never called: InputError: `Counting`",
        ),
        ("unseeded_weights", "initial weights before the first step", "the model is made before the seed is set"),
        ("unseeded_data", "batch at step 1", "the data or its order are not seeded"),
        ("nondeterministic_operator", "loss at step 1", "an operator is not deterministic (torch names put_)"),
        ("argument_without_effect", "loss at step 1", "an argument without effect: `local_rank=3` has no effect: "),
        ("asks_for_the_library", "loss at step 1", "Doubling.metrics_format is called 5 times under transformers and"),
    ],
)
def test_names_the_way_in_which_a_script_is_broken(broken, difference, cause, tmp_path):
    ended = verify(BROKEN / f"{broken}.py", "--steps", 5, folder=tmp_path)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"First difference: {difference}" in ended.stdout
    assert cause in ended.stdout


NOTEBOOK = """
# %% [markdown]
# # A straight line
# %%
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
# %%
set_seed(1)
model = Line()
model
# %%
trainer = Trainer(model, toy_arguments("out", TrainingArguments), train_dataset=Points(), eval_dataset=Points(4))
trainer.train()
# %%
trainer.evaluate()
# %%
class Told(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        print("epoch", state.epoch)
trainer = Trainer(trainer.model, trainer.args, train_dataset=Points(6), callbacks=[Told()])
trainer.train()
trainer.save_model("out/final")
"""
CACHING = """
from pathlib import Path
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments

args = toy_arguments("out", TrainingArguments)
Trainer(Line(), args, train_dataset=Points()).train()
Path(args.output_dir).mkdir(exist_ok=True)
Path(args.output_dir, "data.txt").write_text("cached" if Path("cache").exists() else "made")
Path("cache").touch()
"""


@pytest.mark.slow
def test_script_in_the_style_of_a_notebook(tmp_path):
    (tmp_path / "cells.py").write_text(NOTEBOOK)
    ended = verify("cells.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "identical for 16 steps, 0 checkpoints, 1 evaluation" in ended.stdout


@pytest.mark.slow
def test_what_a_first_run_leaves_is_no_difference(tmp_path):
    (tmp_path / "script.py").write_text(CACHING)
    ended = verify("script.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = "Not reproducible at all, in two runs under transformers:\n  file 0/data.txt: its content and another\n"
    assert told in ended.stdout
    assert "0 checkpoints, 0 evaluations, except what transformers itself does not reproduce" in ended.stdout


@pytest.mark.slow
def test_against_other_options_with_a_tolerance(script, tmp_path):
    ended = verify(script, "--against", "devices=2", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "devices=2 stays within the tolerance of 0.0001 for 10 steps" in ended.stdout
    ended = verify(script, "--against", "precision=64-true", folder=tmp_path)
    assert "precision=64-true" in ended.stdout
