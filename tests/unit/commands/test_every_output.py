"""Every command with an output that is closed, full, ASCII or gone, a deleted working folder, a path of other bytes.

It succeeds, or ends with a sentence. Each command is imported once, in a process that forks for each way.
"""

import gc
import io
import json
import os
import shutil
import signal
import sys
import traceback
from functools import cache
from pathlib import Path

import pytest

from fresh_process import _SERVER, environment
from portico.__main__ import COMMANDS
from portico.cli import compose
from portico.cli.composition import instantiate_experiment

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

SCRIPT = """
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments

args = toy_arguments("out", TrainingArguments, max_steps=2)
Trainer(Line(), args, train_dataset=Points()).train()
print("trained")
"""
SMALL = (
    *(
        "args.max_steps=2",
        "args.save_strategy=steps",
        "args.save_steps=1",
        "args.logging_steps=1",
        "args.use_cpu=true",
    ),
    *("args.report_to=none", "args.disable_tqdm=true", "args.eval_strategy=no", "args.load_best_model_at_end=false"),
    *("data.num_train=16", "data.num_validation=4", "preprocess.vocab_size=300", "model.hidden_size=16"),
    *("model.num_hidden_layers=1", "model.num_attention_heads=2", "model.intermediate_size=16"),
)
ARGUMENTS = {
    "train": ["+experiment=mrc", *SMALL, "paths.output_dir=FOLDER/trained\u00e9-WAY"],
    "run": ["FOLDER/script.py"],
    "verify": ["--once", "FOLDER/script.py"],
    "preflight": ["--no-data", "FOLDER/script.py"],
    "replay": ["FOLDER/run", "--step", "2"],
    "report": ["FOLDER/run"],
    "demo": ["FOLDER/run", "--port", "0", "--device", "cpu"],
    "sweep": ["FOLDER/sweep"],
}
BROKEN, FULL = (
    128 + signal.SIGPIPE,
    "error: The output cannot be written (No space left on device); send it elsewhere.",
)
WAYS = ("closed", "full", "unbuffered", "ascii", "reader gone", "folder gone", "other bytes")
NOT_UTF8 = os.fsdecode(b"\xff")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run of reading comprehension, a sweep and a script; all have letters beyond ASCII."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "run").mkdir()
    settings = compose([*SMALL, f"paths.output_dir={folder / 'run'}", "name=r\u00e9sum\u00e9"])
    (folder / "run" / "config.yaml").write_text(json.dumps(settings))
    instantiate_experiment(settings, str(folder / "run")).train()
    (folder / "sweep" / "0").mkdir(parents=True)
    job = {"number": 0, "overrides": ["name=\u00e9"], "status": "finished", "goals": {"f1": "max"}, "seconds": 1.0}
    job |= {"objective": {"f1": 1.0}, "metrics": {"f1": 1.0}}
    (folder / "sweep" / "0" / "job.json").write_text(json.dumps(job))
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    return folder


# What commands import when they are run.
LATE = {
    "train": ("portico.cli.app", "portico.mrc.experiment"),
    "replay": ("portico.cli.composition", "portico.inspection.replay", "portico.mrc.experiment"),
    "report": ("portico.mrc.report.command",),
    "demo": ("portico.mrc.demo",),
    "sweep": ("portico.cli.sweeps",),
}


def run_in_each_way(command, words_of_ways, folder, variables):
    """Fork for each way, and write exit codes, outputs and errors into ``outcomes.json``; runs in a new process."""
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = ["", *variables["PYTHONPATH"].split(os.pathsep)]
    from importlib import import_module

    from portico.__main__ import main

    for name in (f"portico.commands.{command}", *LATE.get(command, ())):
        import_module(name)
    gc.freeze()
    outcomes = {}
    for number, (way, words) in enumerate(words_of_ways):
        place = Path(folder, str(number))
        place.mkdir()
        child = os.fork()
        if not child:
            end_as(main, words, way, place)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed = [Path(f"{place}.{name}").read_bytes().decode(errors="replace") for name in ("out", "err")]
        outcomes[f"{way} {words[-1]}"] = [code, *printed]
    Path(folder, "outcomes.json").write_text(json.dumps(outcomes))


def end_as(main, words, way, place):
    """Run a command in this process as a shell would that prepares its output, and end the process."""
    out, err = (os.open(f"{place}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err"))
    if way in ("full", "unbuffered"):
        out = os.open("/dev/full", os.O_WRONLY)
    if way == "reader gone":
        reading, out = os.pipe()
        os.close(reading)
    os.dup2(out, 1)
    os.dup2(err, 2)
    encoding = "ascii" if way == "ascii" else "utf-8"
    raw = [io.FileIO(descriptor, "w", closefd=False) for descriptor in (1, 2)]
    output = raw[0] if way == "unbuffered" else io.BufferedWriter(raw[0])
    sys.stdout = io.TextIOWrapper(output, encoding, write_through=way == "unbuffered")
    sys.stderr = io.TextIOWrapper(raw[1], encoding, errors="backslashreplace", write_through=True)
    if way == "closed":
        os.close(1)
        sys.stdout = None
    os.chdir(place)
    if way == "folder gone":
        place.rmdir()
    words = [word.replace("WAY", way.replace(" ", "")) for word in words]
    sys.argv = ["portico", *words]
    code = 0
    try:
        if words[0] == "demo" and len(words) > 2:
            from portico.mrc import demo

            demo.Demo.server = lambda self: self
            demo.Demo.run = lambda self, sockets: None
        main(words)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 99
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        code = 120  # as Python ends where its last flush fails
    os._exit(code)


@pytest.fixture(scope="module")
def outcome_of(made, tmp_path_factory):
    """A function that returns exit code, output and errors of a command in a way."""

    @cache
    def outcomes(command):
        folder = tmp_path_factory.mktemp(command)
        for name in ("run", "sweep"):
            shutil.copytree(made / name, folder / name)
            shutil.copytree(made / name, folder / f"{name}{NOT_UTF8}")
        for name in ("script.py", f"script{NOT_UTF8}.py"):
            shutil.copy(made / "script.py", folder / name)
        words = [command, *(one.replace("FOLDER", str(folder)) for one in ARGUMENTS[command])]
        others = [
            one.replace("script.py", f"script{NOT_UTF8}.py").replace("trained\u00e9", f"trained{NOT_UTF8}")
            if "." in one
            else f"{one}{NOT_UTF8}" * one.startswith(str(folder)) or one
            for one in words
        ]
        given = [(way, others if way == "other bytes" else words) for way in WAYS]
        given += [(way, [command, "--help"]) for way in WAYS]
        settings = environment(COLUMNS="200", OMP_NUM_THREADS="1")
        process = _SERVER.Process(target=run_in_each_way, args=(command, given, str(folder), settings))
        process.start()
        process.join(timeout=600)
        assert process.exitcode == 0
        return json.loads((folder / "outcomes.json").read_text())

    def outcome(command, way, *, asks_for_help):
        return next(
            ended
            for name, ended in outcomes(command).items()
            if name.startswith(way) and name.endswith("--help") is asks_for_help
        )

    return outcome


SLOW = ("train", "run", "verify", "preflight", "replay")
EVERY = [
    pytest.param(command, way, asks, marks=[pytest.mark.slow] * (command in SLOW))
    for asks in (False, True)
    for command in COMMANDS
    for way in WAYS
    # Without a buffer, the script itself cannot print.
    if not (asks and way == "other bytes") and (command, way, asks) != ("run", "unbuffered", False)
]


@pytest.mark.parametrize(("command", "way", "asks_for_help"), EVERY)
def test_a_command_succeeds_or_ends_with_a_sentence(command, way, asks_for_help, outcome_of):
    code, printed, errors = outcome_of(command, way, asks_for_help=asks_for_help)
    assert "Traceback" not in errors, errors
    if way == "reader gone":
        assert (code, "error: " in errors) == (BROKEN, False), errors
    elif way in ("full", "unbuffered"):
        assert code == (2 if command in ("verify", "preflight") else 1), errors
        assert FULL in errors
    elif way == "folder gone":
        assert code == 1, errors
        assert "error: The current folder has been deleted; change to one that exists." in errors
    elif way == "other bytes":
        assert code == 0 or "error: " in errors, errors
    else:
        assert code == 0, errors
        assert printed or way == "closed"
