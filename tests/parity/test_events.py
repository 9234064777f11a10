"""Arguments and control flow of callbacks, also together with Lightning's callbacks."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.utils.notebook import NotebookProgressCallback

import portico
from models import ToyDataset
from parity.peers import EVENTS, TIMING_KEYS, compare, run

ARGUMENTS = {
    "gradient_accumulation_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "save_steps": 3,
    "max_steps": 5,
}
# Accelerate wraps these two in its own classes.
WRAPPED = ("optimizer", "train_dataloader", "eval_dataloader")


def without_times(values):
    return sorted(name for name in values or {} if not any(mark in name for mark in TIMING_KEYS))


class Arguments(TrainerCallback):
    """A callback that records the arguments of each event."""

    def __init__(self):
        self.calls = []


def _noting(event):
    def method(self, args, state, control, **kwargs):
        kinds = {name: value is None if name in WRAPPED else type(value).__name__ for name, value in kwargs.items()}
        self.calls.append((event, kinds, without_times(kwargs.get("logs")), without_times(kwargs.get("metrics"))))

    return method


for _event in EVENTS:
    setattr(Arguments, _event, _noting(_event))


def test_same_event_arguments(tmp_path):
    def after(trainer):
        trainer.predict(ToyDataset(5))
        trainer.evaluate()
        return {
            "calls": next(each for each in trainer.callback_handler.callbacks if isinstance(each, Arguments)).calls
        }

    ours, _ = compare(tmp_path, callbacks=[Arguments], after=after, **ARGUMENTS)
    # `on_push_begin` is tested with the hub.
    assert {call[0] for call in ours.extra["calls"]} == set(EVENTS) - {"on_push_begin"}


class Freezing(TrainerCallback):
    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        model.bert.requires_grad_((state.epoch or 0) >= 1)


class OwnRate(TrainerCallback):
    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + state.global_step)


class ScaledGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)


class AveragedWeights(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                self.average[name].lerp_(tensor, 0.1)

    def on_train_end(self, args, state, control, model=None, **kwargs):
        model.load_state_dict(self.average)


class OwnMetric(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        metrics["eval_own"] = float(state.global_step)


class FileBesideWeights(TrainerCallback):
    def on_save(self, args, state, control, model=None, **kwargs):
        torch.save(model.classifier.state_dict(), f"{args.output_dir}/checkpoint-{state.global_step}/head.bin")


class OtherSteps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            state.eval_steps, state.save_steps, state.logging_steps, state.max_steps = 2, 100, 3, 4


class FreshControl(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        fresh = type(control)()
        fresh.should_training_stop = state.global_step == 3
        return fresh


class NoMomentum(TrainerCallback):
    def on_epoch_begin(self, args, state, control, optimizer=None, **kwargs):
        optimizer.state.clear()


BEST = {"load_best_model_at_end": True, "metric_for_best_model": "own", "greater_is_better": True}
CALLBACKS = {
    Freezing: {},
    OwnRate: {},
    ScaledGradients: {},
    AveragedWeights: {},
    OwnMetric: BEST,
    FileBesideWeights: {},
    OtherSteps: {},
    FreshControl: {},
    NoMomentum: {},
    ProgressCallback: {},
    NotebookProgressCallback: {},
    PrinterCallback: {},
}


@pytest.mark.parametrize("callback", CALLBACKS)
def test_same_numbers_with_a_callback_of(callback, tmp_path):
    compare(tmp_path, callbacks=[callback], **{**ARGUMENTS, **CALLBACKS[callback]})


def stopping_at(event, flag):
    def stop(self, args, state, control, **kwargs):
        if state.global_step >= 2:
            setattr(control, flag, True)

    return type("Stops", (TrainerCallback,), {event: stop})


STOPPED_AT = ["on_epoch_begin", "on_step_begin", "on_substep_end", "on_step_end", "on_log", "on_evaluate", "on_save"]


@pytest.mark.slow
@pytest.mark.parametrize("event", STOPPED_AT)
@pytest.mark.parametrize("flag", ["should_training_stop", "should_epoch_stop"])
def test_same_end_when_callback_stops(event, flag, tmp_path):
    compare(tmp_path, callbacks=[stopping_at(event, flag)], **{**ARGUMENTS, "eval_steps": 2, "save_steps": 2})


class StopsLightning(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step >= 3


@pytest.mark.parametrize("stopper", [StopsLightning, lambda: EarlyStopping("eval_loss", patience=0, min_delta=9.0)])
def test_lightning_callbacks_stop_a_run(stopper, tmp_path):
    kept = ModelCheckpoint(dirpath=tmp_path / "kept", every_n_train_steps=2, save_top_k=-1)
    parts = {
        "lightning_callbacks": [stopper(), kept, LearningRateMonitor(), Timer()],
        "loggers": [CSVLogger(tmp_path, name="csv")],
    }
    arguments = {**ARGUMENTS, "eval_steps": 1, "save_steps": 1}
    outcome = run(portico, tmp_path / "ours", trainer_options=parts, callbacks=[AveragedWeights], **arguments)
    assert outcome.train_output.global_step < ARGUMENTS["max_steps"]
    assert outcome.events[-1][0] == "on_train_end"
    assert (tmp_path / "ours" / "checkpoint-1" / "optimizer.pt").exists()
    assert list((tmp_path / "kept").glob("*.ckpt"))
    outcome.trainer.lightning_trainer.loggers[0].finalize("success")
    columns = next(tmp_path.glob("csv/*/metrics.csv")).read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {"loss", "grad_norm", "eval_loss"} <= set(columns)
