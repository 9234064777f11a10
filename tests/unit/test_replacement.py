import argparse
import subprocess
import sys
from functools import cache
from importlib import import_module

import pytest
from hydra._internal.utils import get_args_parser

import portico
from fresh_process import assert_runs_anew
from portico import replacement
from portico.__main__ import COMMANDS, main
from portico.errors import ends_with_its_reader

_EVERY = "['Trainer', 'TrainingArguments', 'Seq2SeqTrainer', 'Seq2SeqTrainingArguments', 'HfArgumentParser']"


def test_replaces_and_restores_every_name_and_keeps_pickles_readable(tmp_path):
    script = f"""
import importlib, torch, portico, transformers
from portico.replacement import REPLACED
originals = {{name: getattr(transformers, name) for name in REPLACED}}
assert list(REPLACED) == {_EVERY}
portico.install()
from models import Line, Points, toy_arguments
for name, (home, _) in REPLACED.items():
    ours = getattr(portico, name)
    assert getattr(transformers, name) is getattr(importlib.import_module(home), name) is ours
args = toy_arguments({str(tmp_path)!r}, transformers.TrainingArguments, save_strategy="steps", save_steps=5)
assert type(args) is portico.TrainingArguments
trainer = transformers.Trainer(Line(), args, train_dataset=Points())
trainer.train()
portico.uninstall()
for name, (home, _) in REPLACED.items():
    assert getattr(transformers, name) is getattr(importlib.import_module(home), name) is originals[name]
saved = torch.load({str(tmp_path / "checkpoint-5" / "training_args.bin")!r}, weights_only=False)
assert type(saved) is originals["TrainingArguments"]
"""
    assert_runs_anew(script)


def test_installs_on_demand_whatever_is_imported_first():
    def code(imports):
        return f"""
from portico import replacement
replacement.install_on_demand(devices=2)
import sys
{imports}
assert Trainer.__module__ == "portico.trainer", Trainer
from transformers import Seq2SeqTrainer, TrainingArguments
assert Seq2SeqTrainer.__module__ == "portico.seq2seq"
assert TrainingArguments("out", report_to="none", use_cpu=True).devices == 2
"""

    assert_runs_anew(
        "from portico import replacement; replacement.install_on_demand(); import transformers, sys; "
        "assert not {'torch', 'lightning', 'portico.trainer'} & set(sys.modules)",
        code("import transformers; Trainer = transformers.Trainer"),
        code("from transformers.trainer import Trainer"),
        code("from transformers.trainer_callback import TrainerCallback; from transformers import Trainer"),
        code("import lightning; import transformers; transformers.BertModel; from transformers import Trainer"),
        code("from transformers.training_args import TrainingArguments; from transformers import Trainer"),
    )


def test_names_what_holds_the_old_classes():
    assert_runs_anew(
        """
import sys, types, warnings
from transformers import Trainer
holder = types.ModuleType("holder"); sys.modules["holder"] = holder; holder.Base = Trainer
holder.Mine = type("Mine", (Trainer,), {"__module__": "holder"})
import portico
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    portico.install()
(message,) = [str(one.message) for one in caught if "still held" in str(one.message)]
assert "holder.Base, holder.Mine" in message, message
"""
    )


def test_options_reach_trainer_and_adopted_arguments(tmp_path):
    assert_runs_anew(
        f"""
import transformers
from transformers import TrainingArguments, TrainerCallback
import lightning.pytorch as pl, portico, sys, types
here = types.ModuleType("here"); sys.modules["here"] = here
class One(TrainerCallback): pass
class Two(pl.Callback): pass
here.One, here.Two = One, Two
import warnings; warnings.simplefilter("ignore")
portico.install(precision="bf16-mixed", callbacks=["here.One", Two()], loggers=["csv"])
from models import Line, Points, toy_arguments
for kind in (TrainingArguments, transformers.TrainingArguments):
    trainer = transformers.Trainer(Line(), toy_arguments({str(tmp_path)!r}, kind), train_dataset=Points())
    assert trainer.args.precision == "bf16-mixed"
    assert any(isinstance(one, One) for one in trainer.callback_handler.callbacks)
    assert any(isinstance(one, Two) for one in trainer._lightning_parts["callbacks"])
    trainer.train()
from pathlib import Path
assert "loss" in next(Path({str(tmp_path)!r}).glob("csv/*/metrics.csv")).read_text()
"""
    )


def test_refuses_unknown_options():
    with pytest.raises(
        portico.InputError, match=r"`strat` is not an option of `portico.install`; it takes accelerator"
    ):
        portico.install(strat="ddp")
    assert not replacement.is_installed()
    with pytest.raises(portico.InputError, match=r"'nowhere.Class' cannot be imported \(No module named 'nowhere'\)"):
        replacement.imported("nowhere.Class")


def test_command_lists_sub_commands_without_torch():
    code = "import sys; sys.argv = ['portico', '--help']\ntry:\n    import portico.__main__ as m; m.main()\nfinally:\n"
    code += "    assert not {'torch', 'transformers', 'hydra'} & set(sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"\n    {name} " in shown for name in ("train", "report", "run"))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--version"], f"portico {portico.__version__}, Python "),
        (["report", "--help"], "usage: portico report "),
        (["sweep", "--help"], "usage: portico sweep "),
        (["run", "--help"], "portico run --strategy ddp"),
    ],
)
def test_command(arguments, shown):
    ended = subprocess.run([sys.executable, "-m", "portico", *arguments], capture_output=True, text=True, check=True)
    assert shown in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "error: unknown command 'trian'; did you mean 'train'?"),
        ("xyz", "error: unknown command 'xyz'; it is one of train, run, verify, "),
        ("--steps", "error: unrecognized arguments: --steps"),
    ],
)
def test_unknown_command(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["portico", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words", "offered"),
    [
        ("portico re", "portico re", "replay report"),
        ("portico run scr", "portico run scr", ""),
        ("portico run --st", "portico run --st", "--strategy"),
        ("portico verify train.py --st", "portico verify train.py --st", "--steps"),
        ("portico train --multi", "portico train --multi", "--multirun"),
        # Bash makes a word of each `=`, and what is offered replaces what follows it.
        ("portico train experiment=multiple", "portico train experiment = multiple", "multiple_choice"),
    ],
)
def test_completion(line, words, offered):
    # What Hydra would answer, after seconds.
    hydra = 'portico() { [ "$COMP_LINE" = "portico experiment=multiple" ] && echo experiment=multiple_choice; }'
    variables = f"COMP_LINE='{line}'; COMP_POINT={len(line)}; COMP_WORDS=({words}); COMP_CWORD={words.count(' ')}"
    code = f'{completion_setup()}\n{hydra}\n{variables}; _portico\necho "[${{COMPREPLY[*]}}]"; complete -p portico'
    shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    # Where the function offers nothing, bash completes files.
    assert shown.stdout == f"[{offered}]\ncomplete -o default -F _portico portico\n"
    assert shown.stderr == ""


@cache
def completion_setup():
    command = [sys.executable, "-m", "portico", "--completion"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_completion_offers_every_option(name, monkeypatch, capsys):
    if name == "train":
        actions = get_args_parser()._actions
    else:
        seen = []
        monkeypatch.setattr(argparse.ArgumentParser, "print_help", lambda parser: seen.append(parser))
        monkeypatch.setattr(sys, "argv", [f"portico {name}", "--help"])
        module, _, function = COMMANDS[name].home.partition(":")
        with pytest.raises(SystemExit):
            getattr(import_module(module), function)()
        actions = seen[0]._actions
    options = {one for action in actions for one in action.option_strings if one.startswith("--")} - {"--help"}
    assert set(COMMANDS[name].options.split()) - {"-m"} == options


def test_ends_quietly_when_the_reader_of_its_output_has_gone():
    # `true` has ended long before Python has started.
    prints = "from portico.errors import ends_with_its_reader; ends_with_its_reader(lambda: print('words' * 9999))()"
    command = f'{sys.executable} -c "{prints}" | true; echo ${{PIPESTATUS[0]}}'
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("141\n", "")
    homes = ["portico.__main__", "portico.cli", "portico.cli.sweeps", "portico.mrc.report.command"]
    assert all(hasattr(import_module(home).main, "__wrapped__") for home in homes)


def test_another_broken_pipe_is_an_error():
    @ends_with_its_reader
    def main():
        raise BrokenPipeError("of a worker")

    with pytest.raises(BrokenPipeError, match="of a worker"):
        main()
