import subprocess
import sys

import pytest

import portico
from fresh_process import assert_runs_anew
from portico import replacement
from portico.__main__ import main

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


def test_completion_of_commands_and_files():
    command = [sys.executable, "-m", "portico", "--completion"]
    setup = subprocess.run(command, capture_output=True, text=True, check=True)
    completed = (
        '\nCOMP_WORDS=(portico {word}); COMP_CWORD={number}; _portico\necho "[${{COMPREPLY[*]}}]"; complete -p portico'
    )
    for word, number, offered in (("re", 1, "[replay report]"), ("run scr", 2, "[]")):
        code = setup.stdout + completed.format(word=word, number=number)
        shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        # Where the function offers nothing, bash completes files.
        assert shown.stdout == f"{offered}\ncomplete -o default -F _portico portico\n"
        assert shown.stderr == ""
