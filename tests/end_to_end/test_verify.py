"""`portico verify`: identical scripts, scripts broken on purpose, and a tolerance."""

import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from fresh_process import environment, portico
from portico.inspection.script import Script
from portico.inspection.verification import Verification, _RunningScript

SCRIPT = """
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments

args = toy_arguments("out", TrainingArguments, save_strategy="steps", save_steps=2, eval_strategy="epoch")
trainer = Trainer(Line(), args, train_dataset=Points(), eval_dataset=Points(4))
trainer.train()
"""


def verify(*arguments, folder):
    return portico("verify", *arguments, folder=folder)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return "script.py"


def test_identical_script(script, tmp_path):
    # As a killed verification leaves them.
    for ending in ("", "-portico"):
        (tmp_path / f"out.portico-verify{ending}" / "checkpoint-2").mkdir(parents=True)
    ended = verify(script, "--once", "--steps", 6, "--report", "page.html", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("identical for 6 steps, 3 checkpoints, 2 evaluations\n")
    assert not list(tmp_path.glob("out*"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Verification" in page
    assert "identical for 6 steps" in page
    assert page.count("<svg") == 2
    assert not re.search(r"(src|href)=.?http", page)


SLOW = """
import time
from pathlib import Path
from transformers import TrainerCallback

class Waits(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if not Path("quick").exists():
            Path(args.output_dir, "waits").touch()
            time.sleep(600)

trainer.add_callback(Waits)
"""


@pytest.mark.slow
def test_a_killed_verification_ends_its_runs_and_leaves_nothing_to_the_next(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.replace("trainer.train()", f"{SLOW}\ntrainer.train()"))
    command = [sys.executable, "-m", "portico", "verify", "script.py", "--steps", "4"]
    (tmp_path / "tmp").mkdir()
    settings = environment(OMP_NUM_THREADS="1", TMPDIR=str(tmp_path / "tmp"))
    with subprocess.Popen(command, cwd=tmp_path, env=settings) as verification:
        until = time.monotonic() + 240
        while len(waiting := [*tmp_path.glob("out*/waits")]) < 2:
            assert verification.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
        runs = psutil.Process(verification.pid).children(recursive=True)
        assert len(runs) >= 2
        verification.kill()
    assert not psutil.wait_procs(runs, timeout=60)[1], "a run trains on without its verification"
    assert all(path.exists() for path in waiting)
    assert [*tmp_path.glob("tmp/portico-verify-*")]
    (tmp_path / "quick").touch()
    ended = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not [*tmp_path.glob("out*"), *tmp_path.glob("tmp/portico-verify-*")]


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
    assert (ended.stderr.count("KeyError: 'mine'"), ended.stderr.count("Running under")) == (1, 2)
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
def test_script_that_imports_the_trainer_of_portico(tmp_path):
    (tmp_path / "own.py").write_text(SCRIPT.replace("from transformers", "from portico"))
    ended = verify("own.py", folder=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.count("error: ") == 1
    assert "error: The script imports a trainer from portico, so transformers cannot run it" in ended.stderr
    assert "(line 3 of " in ended.stderr
    ended = verify("own.py", "--against", "precision=bf16-mixed", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "precision=bf16-mixed stays within the tolerance" in ended.stdout


HEADER = """
import random, time
import torch
from torch.utils.data import Subset
from transformers import Trainer, TrainerCallback, TrainingArguments
from models import Line, Points, toy_arguments

arguments, data = toy_arguments("out", TrainingArguments), Points()
"""
# Of each script the difference that is found first, and its cause.
BROKEN = {
    "seeds_in_a_callback": (
        """
class Reseeding(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            torch.seed()

class Noisy(Line):
    def forward(self, x, labels=None):
        return super().forward(x + torch.rand_like(x) if self.training else x, labels)

Trainer(Noisy(), arguments, train_dataset=data, callbacks=[Reseeding()]).train()
""",
        "loss at step 4",
        "the callback Reseeding.on_step_end draws random numbers",
    ),
    "overrides_the_loop": (
        """
class Counting(Trainer):
    def _run_epoch(self, *args, **kwargs):
        return super()._run_epoch(*args, **kwargs)

Counting(Line(), arguments, train_dataset=data).train()
""",
        "exit before the first step",
        "an override that is never called: `Counting`",
    ),
    "unseeded_weights": (
        """
model = Line()
torch.seed()
torch.nn.init.normal_(model.linear.weight)
Trainer(model, arguments, train_dataset=data).train()
""",
        "initial weights before the first step",
        "the model is made before the seed is set",
    ),
    "unseeded_data": (
        """
order = list(range(10))
random.SystemRandom().shuffle(order)
Trainer(Line(), arguments, train_dataset=Subset(data, order)).train()
""",
        "batch at step 1",
        "the data or its order are not seeded",
    ),
    # The operator stands for a kernel whose threads add in any order: on one CPU thread none does.
    "nondeterministic_operator": (
        """
class Racing(Line):
    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        torch.zeros(4).put_(torch.arange(4), torch.ones(4))
        return {**outputs, "loss": outputs["loss"] * (1 + (time.time_ns() % 1000) * 1e-6)}

Trainer(Racing(), arguments, train_dataset=data).train()
""",
        "loss at step 1",
        "an operator is not deterministic (torch names put_)",
    ),
    # The next two differ only where the trainer has the loop of transformers.
    "argument_without_effect": (
        """
class Ranked(Trainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss * self.args.local_rank if hasattr(self, "_run_epoch") else loss

Ranked(Line(), toy_arguments("out", TrainingArguments, local_rank=3), train_dataset=data).train()
""",
        "loss at step 1",
        "an argument without effect: `local_rank=3` has no effect: ",
    ),
    "asks_for_the_library": (
        """
class Doubling(Trainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return self.metrics_format(loss) if hasattr(self, "_run_epoch") else loss

    def metrics_format(self, metrics):
        return 2 * metrics

Doubling(Line(), arguments, train_dataset=data).train()
""",
        "loss at step 1",
        "Doubling.metrics_format is called 5 times under transformers and",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_names_the_way_in_which_a_script_is_broken(name, tmp_path):
    script, difference, cause = BROKEN[name]
    (tmp_path / "broken.py").write_text(HEADER + script)
    ended = verify("broken.py", "--steps", 5, folder=tmp_path)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"First difference: {difference}" in ended.stdout
    assert ended.stdout.count(cause) == 1


LAUNCH = ["-m", "torch.distributed.run", "--nproc-per-node", 2]


@pytest.mark.slow
def test_two_processes_of_a_launcher(script, tmp_path):
    ended = verify(*LAUNCH, script, folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "identical for 6 steps, 3 checkpoints, 2 evaluations" in ended.stdout
    assert re.search(r"batches\W+12\W+12", ended.stdout)
    failing = "import os\nif os.environ['RANK'] == '1':\n    raise KeyError('mine')\n"
    (tmp_path / "fails.py").write_text(SCRIPT + failing)
    ended = verify(*LAUNCH, "fails.py", folder=tmp_path)
    assert ended.returncode == 2
    assert "KeyError: 'mine'" in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fails.py", "script.py"]


FORKS = """
from accelerate import debug_launcher
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments


def train():
    Trainer(Line(), toy_arguments("out", TrainingArguments), train_dataset=Points()).train()


debug_launcher(train, num_processes=2)
"""


@pytest.mark.slow
def test_two_processes_that_the_script_forks(tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    ended = verify("forks.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "identical for 6 steps" in ended.stdout
    assert re.search(r"trainers\W+1\W+1", ended.stdout)
    assert re.search(r"batches\W+12\W+12", ended.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["forks.py"]


@pytest.mark.parametrize(
    "line", ["os.environ['MASTER_PORT'] = '29500'", "init(init_method='tcp://localhost:29500')", "call(['torchrun'])"]
)
def test_runs_that_would_share_a_port_follow_each_other(line, tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(line)
    started = []

    def start(verification, label, settings, **environment):
        started.append(label)
        process = SimpleNamespace(poll=lambda: 0)
        return SimpleNamespace(
            process=process, finished=lambda: started.append(f"{label} ended"), lacked_an_address=lambda: False
        )

    monkeypatch.setattr(Verification, "_start", start)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    verification = Verification(Script(str(tmp_path / "script.py")), tmp_path, None)
    assert verification._side_by_side() == (None, None)
    assert started == ["transformers", "transformers ended"]
    (tmp_path / "script.py").write_text("report_to = 'none'")
    verification._side_by_side()
    assert started[2:] == ["transformers", "portico", "transformers ended", "portico ended"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="runs follow each other anyway")
def test_runs_that_turn_out_to_share_a_port_follow_each_other(tmp_path, monkeypatch):
    # What waits for processes that have joined the other run would wait for minutes.
    commands = {"transformers": "sleep 60", "portico": "echo 'OSError: [Errno 98] Address already in use'; exit 1"}

    processes = {}

    def start(verification, label, settings, **environment):
        with (tmp_path / "log").open("a") as log:
            processes[label] = process = subprocess.Popen(["sh", "-c", commands[label]], stdout=log)
        return _RunningScript(label, tmp_path, process)

    monkeypatch.setattr(Verification, "_start", start)
    assert Verification(Script("script.py"), tmp_path, None)._side_by_side()[1] is None
    assert processes["transformers"].returncode < 0, "it was ended"


@pytest.mark.slow
def test_sets_have_one_order(tmp_path):
    writing = 'Path(args.output_dir, "set.txt").write_text(str({f"layer {number}" for number in range(9)}))'
    (tmp_path / "script.py").write_text(WRITING.replace(WRITING.splitlines()[-1], writing))
    ended = verify("script.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr.count("Running under") == 2


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
WRITING = """
import os
from pathlib import Path
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments

args = toy_arguments("out", TrainingArguments)
Trainer(Line(), args, train_dataset=Points()).train()
Path(args.output_dir).mkdir(exist_ok=True)
Path(args.output_dir, "data.txt").write_text(f"made by {os.getpid()}")
"""


@pytest.mark.slow
def test_script_in_the_style_of_a_notebook(tmp_path):
    (tmp_path / "cells.py").write_text(NOTEBOOK)
    ended = verify("cells.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "identical for 16 steps, 0 checkpoints, 1 evaluation" in ended.stdout


@pytest.mark.slow
def test_a_file_that_no_run_writes_alike_is_no_difference(tmp_path):
    (tmp_path / "script.py").write_text(WRITING)
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
