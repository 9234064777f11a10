"""A run as seen by Lightning's callbacks and loggers."""

import copy
import csv

import pytest
import torch
import transformers
from lightning.pytorch.callbacks import Callback, EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from transformers import TrainerCallback

import portico
from models import Line, Points, toy_arguments, toy_trainer

EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}


class Watch(Callback):
    """A callback that records the counts of both libraries at the end of each batch."""

    def __init__(self):
        self.trainer = None
        self.seen = []
        self.calls = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        state = self.trainer.state
        self.seen.append((trainer.global_step, trainer.current_epoch, batch_idx))
        assert trainer.global_step == state.global_step

    def on_train_start(self, trainer, pl_module):
        self.calls.append("train_start")

    def on_train_epoch_start(self, trainer, pl_module):
        self.calls.append("epoch_start")

    def on_train_epoch_end(self, trainer, pl_module):
        self.calls.append("epoch_end")

    def on_validation_end(self, trainer, pl_module):
        self.calls.append("validation_end")

    def on_train_end(self, trainer, pl_module):
        self.calls.append("train_end")


def watched(output_dir, **changes):
    watch = Watch()
    trainer = toy_trainer(output_dir, parts={"lightning_callbacks": [watch]}, **changes)
    watch.trainer = trainer
    return trainer, watch


def test_lightning_counts_same_steps_and_epochs(tmp_path):
    trainer, watch = watched(tmp_path, gradient_accumulation_steps=2)
    trainer.train()
    assert watch.seen == [(step, epoch, batch) for epoch in (0, 1) for batch, step in _steps_of_an_epoch(epoch)]
    assert trainer.lightning_trainer.global_step == trainer.state.global_step == 6


@pytest.mark.parametrize("stays", [True, False])
def test_model_is_moved_to_the_cpu_only_if_the_user_places_it(stays, tmp_path, monkeypatch):
    """Lightning moves it at the end of each loop."""
    moved = []
    monkeypatch.setattr(torch.nn.Module, "cpu", lambda module: moved.append(module) or module)
    trainer = toy_trainer(tmp_path, parts={"eval_dataset": Points()})
    trainer.place_model_on_device = stays
    trainer.train()
    trainer.evaluate()
    assert (moved == []) is stays
    assert trainer.module.cpu() is trainer.module
    assert moved[-1] is trainer.module


def _steps_of_an_epoch(epoch):
    return enumerate(3 * epoch + steps for steps in (0, 1, 1, 2, 3))


def test_lightning_counts_same_steps_after_mid_epoch_resume(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": 2}
    toy_trainer(tmp_path, **saving).train()
    trainer, watch = watched(tmp_path, **saving)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert watch.seen == [(4, 1, 2), (5, 1, 3), (6, 1, 4)]
    assert trainer.lightning_trainer.current_epoch == 2
    assert trainer.lightning_trainer.global_step == trainer.state.global_step == 6


def test_lightning_callbacks_see_a_normal_run(tmp_path):
    trainer, watch = watched(tmp_path, eval_strategy="epoch")
    trainer.train()
    epoch = ["epoch_start", "epoch_end", "validation_end"]
    assert sorted(watch.calls) == sorted(["train_start", *epoch, *epoch, "train_end"])
    assert watch.calls[0] == "train_start"
    assert watch.calls[-1] == "train_end"


def test_model_checkpoint_monitors_evaluation_metric(tmp_path):
    keeper = ModelCheckpoint(
        dirpath=tmp_path / "kept", monitor="eval_loss", filename="{step}", every_n_train_steps=2, save_top_k=2
    )
    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [keeper]}, **EVALUATED)
    trainer.train()
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    assert float(keeper.best_model_score) == pytest.approx(min(losses.values()))
    best = torch.load(keeper.best_model_path, weights_only=False)
    assert best["global_step"] == min(losses, key=losses.get)
    assert len(list((tmp_path / "kept").glob("*.ckpt"))) == 2


def test_model_checkpoint_monitors_logged_value(tmp_path):
    keeper = ModelCheckpoint(dirpath=tmp_path / "kept", monitor="loss", every_n_train_steps=1)
    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [keeper]}, **EVALUATED)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert float(keeper.best_model_score) == pytest.approx(min(losses))


def test_early_stopping_callback_stops_run(tmp_path):
    stopper = EarlyStopping(monitor="eval_loss", patience=1, stopping_threshold=1e9, check_on_train_epoch_end=False)
    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [stopper]}, **EVALUATED)
    trainer.train()
    assert trainer.state.global_step == 2
    assert stopper.stopped_epoch == 0
    assert trainer.control.should_training_stop


def test_early_stopping_callback_stops_run_at_epoch_end(tmp_path):
    stopper = EarlyStopping(monitor="eval_loss", stopping_threshold=1e9, check_on_train_epoch_end=True)
    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [stopper]}, eval_strategy="epoch")
    trainer.train()
    assert trainer.state.global_step == 5
    assert trainer.state.epoch == 1.0


def test_early_stopping_with_patience_lets_run_end(tmp_path):
    stopper = EarlyStopping(monitor="eval_loss", patience=100)
    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [stopper]}, **EVALUATED)
    trainer.train()
    assert trainer.state.global_step == 10


def test_lightning_loggers_get_logged_values(tmp_path):
    logger = CSVLogger(tmp_path, name="csv", version="")
    trainer = toy_trainer(tmp_path, parts={"loggers": [logger]}, logging_steps=3, **EVALUATED)
    trainer.train()
    trainer.evaluate(metric_key_prefix="last")
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    # Nothing saves the file after that evaluation but the logging itself.
    assert [float(row["last_loss"]) for row in rows if row["last_loss"]] == [
        trainer.state.log_history[-1]["last_loss"]
    ]
    logged = {(int(row["step"]), float(row["loss"]), float(row["learning_rate"])) for row in rows if row["loss"]}
    evaluated = {(int(row["step"]), float(row["eval_loss"])) for row in rows if row["eval_loss"]}
    history = trainer.state.log_history
    assert logged == {(entry["step"], entry["loss"], entry["learning_rate"]) for entry in history if "loss" in entry}
    assert {step for step, *_ in logged} == {3, 6, 9}
    assert evaluated == {(entry["step"], entry["eval_loss"]) for entry in history if "eval_loss" in entry}
    assert {step for step, _ in evaluated} == {2, 4, 6, 8, 10}


def test_every_lightning_logger_gets_logged_values(tmp_path):
    loggers = [CSVLogger(tmp_path, name=name, version="") for name in ("one", "two")]
    toy_trainer(tmp_path, parts={"loggers": loggers}, max_steps=2).train()
    first, second = ((tmp_path / name / "metrics.csv").read_text() for name in ("one", "two"))
    assert first == second != ""


def test_lightning_objects_are_accessible(tmp_path):
    trainer = toy_trainer(tmp_path)
    assert isinstance(trainer.module, portico.TrainerModule)
    assert isinstance(trainer.datamodule, portico.TrainerDataModule)
    trainer.train()
    assert trainer.lightning_trainer.lightning_module is trainer.module
    assert trainer.module.model is trainer.model


def test_gradient_accumulation_scheduler_is_rejected(tmp_path):
    with pytest.raises(portico.InputError, match="gradient_accumulation_steps"):
        toy_trainer(tmp_path, parts={"lightning_callbacks": [GradientAccumulationScheduler({0: 2})]})


def test_evaluate_calls_lightning_callbacks(tmp_path):
    trainer, watch = watched(tmp_path)
    trainer.evaluate()
    assert watch.calls == ["validation_end"]
    trainer.predict(Points(4))
    assert watch.calls == ["validation_end"]


class PredictsEachStep(TrainerCallback):
    """A callback that predicts during training, with metric names that a Lightning callback monitors."""

    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.predict(Points(4), metric_key_prefix="eval")


def test_predict_during_training_runs_no_validation_hooks(tmp_path):
    stopping = EarlyStopping("eval_loss", patience=1, min_delta=100.0)
    saving = ModelCheckpoint(tmp_path / "lightning", monitor="eval_loss", save_top_k=-1)
    predicts = PredictsEachStep()
    parts = {"lightning_callbacks": [stopping, saving], "callbacks": [predicts]}
    predicts.trainer = trainer = toy_trainer(tmp_path, parts=parts, eval_strategy="steps", eval_steps=5)
    trainer.train()
    assert trainer.state.global_step == 10
    assert stopping.wait_count == 1
    assert len(list((tmp_path / "lightning").iterdir())) == 2
    assert trainer.lightning_trainer.callback_metrics["eval_loss"] == trainer.state.log_history[-2]["eval_loss"]


def test_predict_during_training_runs_test_hooks(tmp_path):
    class Tested(Callback):
        def __init__(self):
            self.calls = []

        def on_test_start(self, trainer, pl_module):
            self.calls.append("start")

        def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
            self.calls.append(batch_idx)

        def on_test_end(self, trainer, pl_module):
            self.calls.append("end")

    tested, predicts = Tested(), PredictsEachStep()
    parts = {"lightning_callbacks": [tested], "callbacks": [predicts]}
    predicts.trainer = trainer = toy_trainer(tmp_path, parts=parts, max_steps=1)
    trainer.train()
    assert tested.calls == ["start", 0, 1, "end"]


@pytest.mark.parametrize("outer", ["evaluate", "predict"])
@pytest.mark.parametrize("inner", ["evaluate", "predict"])
@pytest.mark.parametrize("trains", [True, False])
def test_evaluations_can_be_nested(outer, inner, trains, tmp_path):
    class Nests(TrainerCallback):
        depth = 0
        trainer = None

        def on_prediction_step(self, args, state, control, **kwargs):
            if self.depth < 2:
                self.depth += 1
                getattr(self.trainer, inner)(Points(2 + self.depth))
                self.depth -= 1

        def on_step_end(self, args, state, control, **kwargs):
            self.result = getattr(self.trainer, outer)(Points(6))

    nests = Nests()
    nests.trainer = trainer = toy_trainer(tmp_path, max_steps=1)
    trainer.add_callback(nests)
    if trains:
        trainer.train()
    else:
        nests.on_step_end(None, None, None)
    trainer.remove_callback(nests)
    result, again = nests.result, getattr(trainer, outer)(Points(6))
    if outer == "evaluate":
        assert result["eval_loss"] == again["eval_loss"]
    else:
        assert (result.predictions == again.predictions).all()
        assert result.metrics["test_loss"] == again.metrics["test_loss"]


def test_a_run_of_no_step_has_a_speed(tmp_path):
    metrics = toy_trainer(tmp_path, num_train_epochs=0).train().metrics
    assert metrics["train_samples_per_second"] == metrics["train_steps_per_second"] == 0


@pytest.mark.parametrize("library", [transformers, portico])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("num_runs", [0, 1])
def test_copy_of_a_trainer_trains_itself(copied, num_runs, library, tmp_path):
    def trainer():
        args = toy_arguments(tmp_path, library.TrainingArguments, max_steps=3)
        made = library.Trainer(Line(), args, train_dataset=Points(), eval_dataset=Points(6, seed=1))
        for _ in range(num_runs):
            made.train()
        return made

    one, trained_on = trainer(), trainer()
    another = copied(one)
    loss = one.evaluate()["eval_loss"]
    trained_on.train()
    another.train()
    assert (one.state.global_step, another.state.global_step) == (3 * num_runs, 3)
    assert (another.model is one.model) == (copied is copy.copy)
    if copied is copy.deepcopy:
        assert one.evaluate()["eval_loss"] == loss
    # The steps of accelerate's optimizer, if it has been used, do not reach the weights of a deep copy.
    if (library, copied, num_runs) != (transformers, copy.deepcopy, 1):
        assert another.evaluate()["eval_loss"] == trained_on.evaluate()["eval_loss"]
