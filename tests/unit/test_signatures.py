"""The public API compared with the installed transformers name by name; each difference is listed with its reason."""

import copy
import dataclasses
import functools
import inspect
import operator
import pickle

import lightning.pytorch as pl
import pytest
import transformers
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, TrainOutput

import portico
from models import Line, Points, ToyDataset, tiny_bert, toy_trainer
from parity.peers import OWN_FIELDS
from portico.deprecated import OlderArguments
from portico.loop.core import TrainerCore
from portico.loop.overrides import INSTEAD

pytestmark = pytest.mark.pinned

LIGHTNING_PARTS = ["lightning_callbacks", "loggers", "plugins", "lightning_kwargs"]

DIFFERENT_SIGNATURES = {
    "__init__": "takes Lightning's parts and the older `tokenizer` too, by keyword",
    "_maybe_log_save_evaluate": "overrides written for older versions call it without `start_time`",
    "_save_checkpoint": "overrides written for older versions give `metrics`",
    "get_batch_samples": "overrides written for older versions call it without `device`",
    "metrics_format": "transformers 5.23 lost its `self`, so that calling it on a trainer fails there",
}
NOT_THERE = dict.fromkeys(INSTEAD, "no code here calls it; a subclass that overrides it is refused")
ATTRIBUTES_NOT_THERE = {
    "_loggers_initialized": "written and never read by transformers",
    "_mixed_mesh_grads": "belongs to models that transformers shards itself",
}


def parameters(function):
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def is_static(kind, name):
    return isinstance(inspect.getattr_static(kind, name), staticmethod)


def own_names(kind):
    return [name for name in vars(kind) if name == "__init__" or not name.startswith("__")]


@pytest.mark.parametrize("name", sorted(own_names(transformers.Trainer)))
def test_trainer_method_signatures(name):
    if not hasattr(portico.Trainer, name):
        assert name in NOT_THERE
        return
    theirs, ours = getattr(transformers.Trainer, name), getattr(portico.Trainer, name)
    if callable(theirs):
        assert (parameters(theirs) == parameters(ours)) is (name not in DIFFERENT_SIGNATURES)
        assert is_static(transformers.Trainer, name) == is_static(portico.Trainer, name)


def test_declared_differences_exist():
    names = set(own_names(transformers.Trainer))
    assert DIFFERENT_SIGNATURES.keys() <= names
    assert NOT_THERE.keys() <= names
    called_by_copies = {name for name in INSTEAD if hasattr(portico.Trainer, name)}
    assert called_by_copies == {"_has_mixed_mesh_grads", "_prepare_context_parallel_inputs"}


def test_constructor_adds_keyword_only_arguments():
    theirs, ours = parameters(transformers.Trainer), parameters(portico.Trainer)
    assert ours[: len(theirs)] == theirs
    assert [name for name, kind, _ in ours[len(theirs) :] if kind is inspect.Parameter.KEYWORD_ONLY] == [
        "tokenizer",
        *LIGHTNING_PARTS,
    ]


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    """Return a trainer of each library after training and evaluation."""
    made = []
    for library in (transformers, portico):
        args = library.TrainingArguments(
            str(tmp_path_factory.mktemp("run")), report_to="none", use_cpu=True, disable_tqdm=True, max_steps=1
        )
        data = {"train_dataset": ToyDataset(), "eval_dataset": ToyDataset(4)}
        made.append(library.Trainer(model=tiny_bert(), args=args, **data))
        made[-1].remove_callback(transformers.PrinterCallback)
        made[-1].train()
        made[-1].evaluate()
    return made


def test_trainer_attributes_exist(trainers):
    theirs, ours = trainers
    missing = {name for name in vars(theirs) if not hasattr(ours, name)}
    assert missing == ATTRIBUTES_NOT_THERE.keys()


def test_plain_attributes_have_same_values(trainers):
    theirs, ours = trainers
    plain = [name for name, value in vars(theirs).items() if isinstance(value, bool | int | str | None)]
    plain = [name for name in plain if name not in ATTRIBUTES_NOT_THERE and "time" not in name]
    assert len(plain) > 10
    for name in plain:
        # A switch that is not set is `False` in portico and `None` in transformers.
        assert (getattr(ours, name) or None) == (getattr(theirs, name) or None), name


def test_argument_fields_and_defaults():
    theirs, ours = (
        {field.name: field for field in dataclasses.fields(library.TrainingArguments)}
        for library in (transformers, portico)
    )
    added = ours.keys() - theirs.keys()
    assert added == {*OWN_FIELDS} | OlderArguments.__annotations__.keys()
    assert theirs.keys() <= ours.keys()
    for name, field in theirs.items():
        assert (field.default, field.init) == (ours[name].default, ours[name].init)
    assert list(ours)[: len(theirs)] == list(theirs)


@pytest.mark.parametrize("name", sorted(name for name in dir(transformers.TrainingArguments) if name[0] != "_"))
def test_argument_method_signatures(name):
    theirs, ours = getattr(transformers.TrainingArguments, name), getattr(portico.TrainingArguments, name)
    if inspect.isfunction(theirs):
        assert parameters(theirs) == parameters(ours)


def test_results_are_transformers_classes(tmp_path):
    trainer = toy_trainer(tmp_path, max_steps=1)
    assert type(trainer.train()) is TrainOutput
    assert type(trainer.predict(trainer.eval_dataset)) is PredictionOutput
    assert type(trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation")) is EvalLoopOutput


@pytest.mark.parametrize("name", INSTEAD)
def test_override_of_unused_method_is_rejected(name, tmp_path):
    subclass = type("Curious", (portico.Trainer,), {name: lambda self, *args, **kwargs: None})
    trainer = toy_trainer(tmp_path, subclass)
    assert trainer.evaluate()["eval_loss"] > 0
    with pytest.raises(portico.InputError, match=f"`Curious` overrides `{name}`, which is never.*override"):
        trainer.train()


def test_override_of_unused_method_is_rejected_under_the_users_lightning_trainer(tmp_path):
    subclass = type("Curious", (portico.Trainer,), {"_run_epoch": lambda self: None})
    trainer = toy_trainer(tmp_path, subclass)
    runner = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(portico.InputError, match="`Curious` overrides `_run_epoch`, which is never called"):
        runner.fit(trainer.module, trainer.datamodule)


def test_subclass_may_set_the_attributes_that_show_the_core(tmp_path):
    class Own(portico.Trainer):
        def __init__(self, *args, **kwargs):
            self.module = self.datamodule = "before"
            super().__init__(*args, **kwargs)
            self.lightning_trainer = self.corrections = "after"

    trainer = toy_trainer(tmp_path, Own, eval_strategy="epoch")
    assert trainer.train().global_step == 10
    assert [trainer.module, trainer.datamodule, trainer.lightning_trainer, trainer.corrections] == [
        *("before", "before"),
        *("after", "after"),
    ]


def test_decorated_training_step_finds_its_gradients(tmp_path):
    found = []

    class Decorated(portico.Trainer):
        @functools.wraps(portico.Trainer.training_step)
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            found.append(self.model.linear.weight.grad is not None)
            return loss

    toy_trainer(tmp_path, Decorated, max_steps=2).train()
    assert found == [True, True]


@pytest.mark.parametrize(
    "name", ["Trainer", "Seq2SeqMRCTrainer", "ORTSeq2SeqTrainer", "IPUSeq2SeqTrainer", "mrc.MultiSourceMRCTrainer"]
)
def test_core_of_every_trainer_can_be_pickled(name):
    """Strategies that spawn workers pickle the trainer."""
    core = operator.attrgetter(name)(portico)._Trainer__core_class
    assert pickle.loads(pickle.dumps(core)) is core


# Names of transformers 4, whose subclasses override or call these methods.
OLDER_NAMES = {
    "_gather_and_numpify",
    "_nested_gather",
    "_pad_across_processes",
    "_rotate_checkpoints",
    "_sorted_checkpoints",
    "do_grad_scaling",
    "init_git_repo",
    "prediction_loop",
    "sharded_ddp",
    "tokenizer",
    "use_apex",
    "use_cpu_amp",
    "use_cuda_amp",
}
# Attributes that transformers' trainer sets in its constructor, or its `train`.
ATTRIBUTES = {
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "_total_loss_scalar",
    "_tr_loss",
    "current_gradient_accumulation_steps",
    "model_preparation_time",
    "objective",
    "push_in_progress",
}


def test_subclass_may_use_any_name_that_transformers_does_not_use(tmp_path):
    theirs = transformers.Trainer(Line(), transformers.TrainingArguments(str(tmp_path), report_to="none"))
    names = {name for name in dir(toy_trainer(tmp_path)) if not name.startswith(("__", "_Trainer__"))}
    names |= {name for name in dir(TrainerCore) if not name.startswith("__")}
    names -= {*dir(theirs), *OLDER_NAMES, *ATTRIBUTES}
    assert {"adopt_state", "set_up_run", "module", "lightning_trainer", "_portico"} <= names

    def of_the_user(self):
        raise AssertionError("called")

    class Own(portico.Trainer):
        """A trainer with methods for something else."""

    for name in names:
        setattr(Own, name, of_the_user)
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainer = toy_trainer(tmp_path, Own, **options, gradient_accumulation_steps=2)
    assert trainer.train().global_step == 6
    trainer.evaluate()
    trainer.predict(Points(4))
    trainer.save_model()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert copy.copy(trainer).train().global_step == 6
