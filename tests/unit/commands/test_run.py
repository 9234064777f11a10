import subprocess
import sys
from pathlib import Path

import pytest

from fresh_process import environment, portico
from portico.commands import run
from portico.inspection.script import Script

TRAINS = """
import sys
from transformers import {names}
from models import Line, Points, toy_arguments

class Mine(Trainer):
    pass

if __name__ == "__main__":
    print("argv", sys.argv, "file", __file__, "path", sys.path[0])
    args = toy_arguments("out", TrainingArguments, save_strategy="steps", save_steps=5)
    trainer = Mine(Line(), args, train_dataset=Points())
    trainer.train()
    print("made by", Trainer.__module__, args.world_size, getattr(args, "precision", 0))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "trains.py").write_text(TRAINS.format(names="Trainer, TrainingArguments"))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "other.py").write_text("from transformers import Trainer, TrainingArguments")
    # Between arguments and trainer, constructors of trl wait for processes that are not running yet.
    waiting = "    with accelerate.PartialState().main_process_first():\n        pass\n    trainer ="
    (tmp_path / "package" / "main.py").write_text(
        TRAINS.format(names="set_seed")
        .replace("import sys\n", "import sys\nimport accelerate\nfrom .other import *\n", 1)
        .replace("    trainer =", waiting)
        + "    print(accelerate.PartialState().distributed_type, accelerate.PartialState().num_processes)\n"
    )
    return tmp_path


def test_runs_a_script_as_python_does(folder):
    plain = subprocess.run(
        [sys.executable, "-W", "ignore", "trains.py", "--a", "1"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    ended = portico("run", "trains.py", "--a", "1", folder=folder)
    assert ended.returncode == 0, ended.stderr
    first = plain.stdout.splitlines()[0]
    assert first.startswith("argv ['trains.py', '--a', '1']")
    assert ended.stdout.splitlines()[0] == first
    assert "made by portico.trainer 1 None" in ended.stdout
    assert (
        "replaces Trainer, TrainingArguments, Seq2SeqTrainer, Seq2SeqTrainingArguments of transformers" in ended.stderr
    )
    assert (folder / "out" / "checkpoint-5" / "training_args.bin").is_file()


def test_runs_a_module_with_relative_imports_in_two_processes(folder):
    ended = portico("run", "--strategy", "ddp", "--devices=2", "-m", "package.main", "--x", folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("portico.trainer 2 None") == 2
    assert ended.stdout.count("DistributedType.MULTI_CPU 2") == 2
    assert ended.stderr.count("replaces Trainer") == 1


INTERRUPTED = """
import transformers
from transformers import Trainer, TrainingArguments
from models import Line, Points, toy_arguments

class Interrupt(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise KeyboardInterrupt

if __name__ == "__main__":
    args = toy_arguments("out", TrainingArguments, save_strategy="steps", save_steps=2, disable_tqdm=True)
    Trainer(Line(), args, train_dataset=Points(), callbacks=[Interrupt()]).train()
"""


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--devices=2", "--strategy=ddp"], marks=pytest.mark.slow),
        pytest.param(["--devices=2", "--strategy=fsdp"], marks=pytest.mark.slow),
    ],
)
def test_interrupt_ends_with_a_sentence_about_the_last_checkpoint(options, folder):
    (folder / "interrupted.py").write_text(INTERRUPTED)
    ended = portico("run", *options, "interrupted.py", folder=folder)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("Interrupted") == 1
    assert ended.stderr.splitlines()[-1] == (
        "error: Interrupted; the last checkpoint is 'out/checkpoint-2'. Continue from it with "
        "`trainer.train(resume_from_checkpoint=True)` in the script."
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["{}"], "`learning_rate=x` is no number. (line 2 of {})"),
        (["--strategy", "ddp", "{}"], "`learning_rate=x` is no number. (line 2 of {})"),
        (["{}", "--learning-rate=x"], "`learning_rate=x` is no number."),
        (["--learning_rate", "x", "{}"], "`learning_rate=x` is no number."),
    ],
)
def test_mistake_on_the_command_line_is_not_blamed_on_the_script(arguments, shown, tmp_path, monkeypatch, capsys):
    file = tmp_path / "fails.py"
    file.write_text("from portico.errors import InputError\nraise InputError('`learning_rate=x` is no number.')\n")
    parser = run.build_parser()
    parser.add_argument("--learning_rate")
    script, _ = Script.split(parser, [word.format(file) for word in arguments])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(SystemExit):
        script.run()
    assert capsys.readouterr().err == f"error: {shown.format(file)}\n"


def test_follows_accelerate_launch(folder):
    ended = portico("run", "trains.py", folder=folder, ACCELERATE_MIXED_PRECISION="bf16")
    assert "made by portico.trainer 1 bf16-mixed" in ended.stdout


def test_replaces_in_spawned_processes(folder):
    (folder / "spawns.py").write_text(
        "import multiprocessing\n"
        "def show(n):\n    from transformers import Trainer\n    print(Trainer.__module__, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=show, args=(1,))\n"
        "    process.start(); process.join(); raise SystemExit(process.exitcode)\n"
    )
    ended = portico("run", "spawns.py", folder=folder)
    assert (ended.returncode, ended.stdout.strip()) == (0, "portico.trainer"), ended.stderr


def test_says_where_a_script_trains_by_itself(folder):
    (folder / "own.py").write_text(
        "import torch\nmodel = torch.nn.Linear(2, 2)\nstep = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n    model(torch.ones(2)).sum().backward()\n    step.step()\n"
    )
    ended = portico("run", "own.py", folder=folder)
    assert ended.returncode == 0
    assert "the process of the script built no Trainer, so nothing in it ran in Lightning" in ended.stderr
    assert "own.py:6) trained 3 steps in a loop of its own" in ended.stderr


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("missing.py", 1, "error: missing.py: no such file; give the path of a script"),
        ("fails.py", 1, 'fails.py", line 2, in <module>'),
        ("needs.py", 2, "needs.py: error: the following arguments are required: --name"),
        ("-m", 1, "error: -m is not followed by a module"),
        ("package", 1, "error: package: a folder without __main__.py"),
    ],
)
def test_bad_scripts(script, code, message, folder):
    Path(folder, "fails.py").write_text("import json\njson.loads('{')\n")
    Path(folder, "needs.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--name', required=True)\nparser.parse_args()\n"
    )
    ended = portico("run", script, folder=folder)
    assert ended.returncode == code
    assert message in ended.stderr
    assert "portico/" not in ended.stderr
    assert "built no Trainer" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--device 2 trains.py", "error: --device is not an option of `portico run`; did you mean --devices?"),
        (
            "--learning_rate 1 trains.py",
            "error: --learning_rate is not an option of `portico run`; `portico run --help`",
        ),
        ("--devices two trains.py", "argument --devices: 'two' is not a number of devices; give one, '0,1' for some"),
        ("--logger tensorbord trains.py", "error: 'tensorbord' is unknown; give package.module.Class, one of the"),
        ("trains", "error: trains: no such file; did you mean trains.py?"),
        ("written", "error: written: the folder that a script wrote; give the script itself, with its arguments."),
    ],
)
def test_mistyped_commands(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "trains.py").touch()
    (tmp_path / "written/checkpoint-5").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "pass_on", lambda: None)
    monkeypatch.setattr(run, "install_on_demand", lambda **options: None)
    with pytest.raises(SystemExit):
        run.main(arguments.split())
    assert message in capsys.readouterr().err


def test_callbacks_are_added_by_their_short_names(folder):
    finders = ("--callbacks", "lr_finder", "--callbacks", "batch_size_finder")
    ended = portico("run", *finders, "trains.py", folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert "Suggested learning rate: " in ended.stderr
    assert "Suggested `per_device_train_batch_size`: " in ended.stderr
    assert len(list(folder.rglob("lr_finder.csv"))) == 1


def test_unknown_callback_is_refused_before_the_script(folder):
    ended = portico("run", "--callbacks", "nowhere.Class", "trains.py", folder=folder)
    assert ended.returncode == 1
    assert "error: 'nowhere.Class' cannot be imported" in ended.stderr
    assert ended.stdout == ""
