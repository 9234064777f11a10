"""The names of transformers, replaced and restored."""

import pytest

import portico
from fresh_process import LARGE, assert_runs_anew
from portico.inspection import install
from portico.trust.names import imported

_EVERY = "['Trainer', 'TrainingArguments', 'Seq2SeqTrainer', 'Seq2SeqTrainingArguments', 'HfArgumentParser']"


def test_replaces_and_restores_every_name_and_keeps_pickles_readable(tmp_path):
    script = f"""
import importlib, torch, portico, transformers
from portico.inspection.install import REPLACED
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
    assert_runs_anew(script, after=LARGE)


@pytest.mark.slow
def test_installs_on_demand_whatever_is_imported_first():
    def code(imports):
        return f"""
from portico.inspection.install import install_on_demand
install_on_demand(devices=2)
import sys
{imports}
assert Trainer.__module__ == "portico.trainer", Trainer
from transformers import Seq2SeqTrainer, TrainingArguments
assert Seq2SeqTrainer.__module__ == "portico.seq2seq"
assert TrainingArguments("out", report_to="none", use_cpu=True).devices == 2
"""

    assert_runs_anew(
        "from portico.inspection.install import install_on_demand; install_on_demand(); import transformers, sys; "
        "assert not {'torch', 'lightning', 'portico.trainer'} & set(sys.modules)",
        code("import transformers; Trainer = transformers.Trainer"),
    )
    assert_runs_anew(
        code("from transformers.trainer import Trainer"),
        code("from transformers.trainer_callback import TrainerCallback; from transformers import Trainer"),
        code("import lightning; import transformers; transformers.BertModel; from transformers import Trainer"),
        code("from transformers.training_args import TrainingArguments; from transformers import Trainer"),
        # The package is imported a second time below `processing_utils`; the script keeps the first object.
        code("import transformers; transformers.TrainerCallback; Trainer = transformers.Trainer"),
        after=["torch._dynamo", "matplotlib.pyplot"],  # half of what lightning takes to import
    )


def test_asks_again_for_what_was_loaded_too_early_and_uninstalls():
    assert_runs_anew(
        """
import transformers
from portico.inspection.install import install_on_demand
install_on_demand()
transformers.TrainerCallback
import sys
# `trainer_callback` has imported it for itself.
assert "transformers.training_args" in sys.modules and "lightning" not in sys.modules
assert transformers.TrainingArguments.__module__ == "portico.arguments"
import portico
portico.uninstall()
assert transformers.TrainingArguments.__module__ == "transformers.training_args"
assert "__getattr__" not in vars(transformers)
"""
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
""",
        after=LARGE,
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
    assert any(isinstance(one, Two) for one in trainer._portico.lightning_parts["callbacks"])
    trainer.train()
from pathlib import Path
assert "loss" in next(Path({str(tmp_path)!r}).glob("csv/*/metrics.csv")).read_text()
""",
        after=LARGE,
    )


def test_refuses_unknown_options():
    with pytest.raises(
        portico.InputError, match=r"`strat` is not an option of `portico.install`; it takes accelerator"
    ):
        portico.install(strat="ddp")
    assert not install._originals
    with pytest.raises(portico.InputError, match=r"'nowhere.Class' cannot be imported \(No module named 'nowhere'\)"):
        imported("nowhere.Class")
