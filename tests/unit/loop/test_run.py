"""Errors, interrupts and SIGTERM during training, evaluation and saving."""

import os
import signal

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import _TunerExitException
from torch.utils.data import DataLoader
from transformers import TrainerCallback, default_data_collator

import portico
from forked import run_in_processes
from models import Line, Points, PointStream, toy_trainer
from portico.loop import lean

SAVING = {"save_strategy": "steps", "save_steps": 2}


class RaiseAt(TrainerCallback):
    def __init__(self, event, step, error):
        self.step, self.error = step, error
        setattr(self, event, self._raise)

    def _raise(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise self.error


class UserError(Exception):
    pass


@pytest.mark.parametrize("event", ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_step_end", "on_save"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("mine")])
def test_callback_error_is_not_wrapped(event, error, tmp_path):
    step = {"on_train_begin": 0, "on_epoch_begin": 5, "on_save": 2}.get(event, 3)
    trainer = toy_trainer(tmp_path, parts={"callbacks": [RaiseAt(event, step, error)]}, **SAVING)
    with pytest.raises(type(error)) as caught:
        trainer.train()
    if isinstance(error, UserError):
        assert caught.value is error
    assert not trainer.is_in_train


# ---- Exceptions by which loops are steered ----

# Exceptions by which Lightning, Python's loops and generators end without an error.
STEERING = [StopIteration, StopAsyncIteration, GeneratorExit, _TunerExitException]


class Breaks:
    """Code of the user that raises ``error`` when it is called for the third time."""

    def __init__(self, error):
        self.error, self.num_calls = error, 0

    def __call__(self, *args, **kwargs):
        self.num_calls += 1
        if self.num_calls == 3:
            raise self.error


class BreakingLine(Line):
    def __init__(self, breaks, *, in_training):
        super().__init__()
        self.breaks, self.in_training = breaks, in_training

    def forward(self, x, labels=None):
        if self.training is self.in_training:
            self.breaks()
        return super().forward(x, labels)


def breaking_callback(event, breaks):
    return type("Breaking", (TrainerCallback,), {event: breaks.__call__})()


def breaking_parts(place, breaks):
    """Return the parts of a trainer that call ``breaks`` in ``place``."""

    def compute_loss(outputs, labels, num_items_in_batch=None):
        breaks()
        return torch.nn.functional.mse_loss(outputs["logits"], labels)

    def compute_metrics(prediction):
        breaks()
        return {}

    if place == "model":
        return {"model": BreakingLine(breaks, in_training=True)}
    if place == "evaluated model":
        return {"model": BreakingLine(breaks, in_training=False)}
    if place == "loss":
        return {"compute_loss_func": compute_loss}
    if place == "metrics":
        return {"compute_metrics": compute_metrics}
    if place == "lightning":
        return {"lightning_callbacks": [type("Breaking", (Callback,), {"on_train_batch_end": breaks.__call__})()]}
    return {"callbacks": [breaking_callback(place, breaks)]}


EVENTS = [
    "on_epoch_begin",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_log",
    "on_prediction_step",
    "on_evaluate",
    "on_epoch_end",
]


@pytest.mark.parametrize("place", ["model", "evaluated model", "loss", "metrics", "lightning", *EVENTS])
def test_only_the_data_end_a_loop(place, tmp_path):
    for error in STEERING if place in ("model", "on_epoch_begin") else [StopIteration]:
        breaks = Breaks(error)
        trainer = toy_trainer(tmp_path, parts=breaking_parts(place, breaks), num_train_epochs=3, eval_strategy="epoch")
        with pytest.raises(error):
            trainer.train()
        assert breaks.num_calls == 3
        assert not trainer.is_in_train


@pytest.mark.parametrize("place", ["evaluated model", "on_prediction_step"])
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_only_the_data_end_an_evaluation(method, place, tmp_path):
    for error in STEERING:
        trainer = toy_trainer(tmp_path, parts=breaking_parts(place, Breaks(error)))
        with pytest.raises(error):
            getattr(trainer, method)(Points(8))


@pytest.mark.parametrize("place", ["collator", "dataset", "own loader"])
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_only_the_sampler_ends_the_data(place, num_workers, tmp_path):
    breaks = Breaks(StopIteration)

    def collate(examples):
        breaks()
        return default_data_collator(examples)

    class BreakingPoints(Points):
        def __getitem__(self, index):
            breaks()
            return super().__getitem__(index)

    class OwnLoader(portico.Trainer):
        def get_train_dataloader(self):
            return DataLoader(Points(), 2, collate_fn=collate, num_workers=num_workers)

    parts = {"collator": {"data_collator": collate}, "dataset": {"train_dataset": BreakingPoints()}}.get(place, {})
    kind = OwnLoader if place == "own loader" else None
    trainer = toy_trainer(tmp_path, kind, parts, dataloader_num_workers=num_workers)
    with pytest.raises(RuntimeError, match="The dataset or the data collator raised StopIteration"):
        trainer.train()


def test_stream_and_limited_batches_still_end(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"train_dataset": PointStream()}, max_steps=7)
    assert trainer.train().global_step == 7
    trainer = toy_trainer(tmp_path, parts={"lightning_kwargs": {"limit_train_batches": 3}})
    assert trainer.train().global_step == 6


def test_exit_of_the_tuner_before_the_first_step_is_no_result(tmp_path):
    class Exits(Callback):
        def on_fit_start(self, trainer, pl_module):
            raise _TunerExitException

    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [Exits()]})
    with pytest.raises(RuntimeError, match="ended before its first step"):
        trainer.train()


def test_only_the_data_end_a_loop_of_lightning(tmp_path, monkeypatch):
    monkeypatch.setattr(lean, "USES_SHORTCUTS", False)
    test_only_the_data_end_a_loop("model", tmp_path)
    test_only_the_data_end_a_loop("on_epoch_begin", tmp_path)
    test_only_the_data_end_an_evaluation("predict", "evaluated model", tmp_path)
    test_stream_and_limited_batches_still_end(tmp_path)


def break_in_the_second_process(folder):
    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if args.process_index == 1:
                raise StopIteration

    # The first process finds that the other one is gone.
    with pytest.raises(StopIteration if os.environ["RANK"] == "1" else RuntimeError):
        toy_trainer(folder, parts={"callbacks": [Break()]}).train()
    (folder / f"ended-{os.environ['RANK']}").touch()
    os._exit(0)


@pytest.mark.slow
def test_only_the_data_end_a_loop_of_several_processes(tmp_path):
    run_in_processes(2, break_in_the_second_process, tmp_path)
    assert (tmp_path / "ended-1").exists()


def test_system_exit_of_user_code_is_kept(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"callbacks": [RaiseAt("on_step_end", 2, SystemExit(3))]})
    with pytest.raises(SystemExit) as caught:
        trainer.train()
    assert caught.value.code == 3


def test_sigterm_ends_training_with_system_exit(tmp_path):
    class Terminate(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    trainer = toy_trainer(tmp_path, parts={"callbacks": [Terminate()]}, **SAVING)
    with pytest.raises(SystemExit) as caught:
        trainer.train()
    assert caught.value.code == 128 + signal.SIGTERM
    assert _entries(tmp_path) == ["checkpoint-2"]


@pytest.mark.parametrize("place", ["forward", "data"])
def test_model_or_data_error_keeps_checkpoints_complete(place, tmp_path):
    class FailingLine(Line):
        calls = 0

        def forward(self, x, labels=None):
            self.calls += 1
            if self.calls == 8:
                raise UserError("forward")
            return super().forward(x, labels)

    class FailingPoints(Points):
        looks = 0

        def __getitem__(self, index):
            self.looks += 1
            if self.looks == 18:
                raise UserError("data")
            return super().__getitem__(index)

    parts = {"model": FailingLine()} if place == "forward" else {"train_dataset": FailingPoints()}
    trainer = toy_trainer(tmp_path, parts=parts, **SAVING)
    with pytest.raises(UserError, match=place):
        trainer.train()
    assert _entries(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_compute_metrics_error_is_not_wrapped(tmp_path):
    def fail(prediction):
        raise UserError("metrics")

    trainer = toy_trainer(tmp_path, parts={"compute_metrics": fail}, eval_strategy="steps", eval_steps=2)
    with pytest.raises(UserError, match="metrics"):
        trainer.train()
    with pytest.raises(UserError, match="metrics"):
        trainer.evaluate()
    trainer.compute_metrics = None
    assert trainer.evaluate()["eval_loss"] > 0


def test_trainer_can_train_again_after_interrupt(tmp_path):
    interrupt = RaiseAt("on_step_end", 3, KeyboardInterrupt())
    trainer = toy_trainer(tmp_path, parts={"callbacks": [interrupt]}, **SAVING)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.remove_callback(interrupt)
    trainer.train(resume_from_checkpoint=True)
    whole = toy_trainer(tmp_path / "whole")
    whole.train()
    assert torch.equal(trainer.model.linear.weight, whole.model.linear.weight)


@pytest.mark.parametrize(("method", "event"), [("train", "on_step_begin"), ("evaluate", "on_prediction_step")])
def test_interrupt_can_be_caught_and_the_next_one_is_not_ignored(method, event, tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started pytest with &
    trainer = toy_trainer(tmp_path, parts={"callbacks": [RaiseAt(event, 0, KeyboardInterrupt())]})
    with pytest.raises(KeyboardInterrupt):
        getattr(trainer, method)()
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("disk full")])
@pytest.mark.parametrize("method", ["save_model", "_save"])
def test_interrupted_save_leaves_no_checkpoint(method, error, tmp_path):
    trainer_class = type("Breaks", (portico.Trainer,), {method: _breaking_at(4, method, error)})
    trainer = toy_trainer(tmp_path, trainer_class, **SAVING)
    with pytest.raises(type(error)):
        trainer.train()
    assert _entries(tmp_path) == ["checkpoint-2"]
    resumed = toy_trainer(tmp_path, **SAVING)
    resumed.train(resume_from_checkpoint=True)
    whole = toy_trainer(tmp_path / "whole")
    whole.train()
    assert torch.equal(resumed.model.linear.weight, whole.model.linear.weight)
    assert _entries(tmp_path) == [
        "checkpoint-10",
        "checkpoint-2",
        "checkpoint-4",
        "checkpoint-6",
        "checkpoint-8",
        "whole",
    ]


def _breaking_at(step, method, error):
    def broken(self, output_dir=None, *args, **kwargs):
        getattr(portico.Trainer, method)(self, output_dir, *args, **kwargs)
        if self.state.global_step == step:
            raise error

    return broken


def _entries(folder):
    return sorted(path.name for path in folder.iterdir())


class TerminateAtPrediction(TrainerCallback):
    def __init__(self, batch):
        self.batch = batch
        self.seen = 0

    def on_prediction_step(self, args, state, control, **kwargs):
        self.seen += 1
        if self.seen == self.batch:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_sigterm_ends_evaluation(method, batch, tmp_path):
    terminate = TerminateAtPrediction(batch)
    trainer = toy_trainer(tmp_path, parts={"callbacks": [terminate]})
    with pytest.raises(SystemExit) as caught:
        getattr(trainer, method)(Points(6))
    assert caught.value.code == 128 + signal.SIGTERM
    assert terminate.seen == batch
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("batch", [4, 6])
def test_sigterm_in_last_evaluation_ends_run(batch, tmp_path):
    terminate = TerminateAtPrediction(batch)
    trainer = toy_trainer(tmp_path, parts={"callbacks": [terminate]}, eval_strategy="epoch")
    with pytest.raises(SystemExit) as caught:
        trainer.train()
    assert caught.value.code == 128 + signal.SIGTERM
    assert terminate.seen == batch


def terminate_both(folder):
    """Let the second process leave at the signal, and the first one wait for it in a collective."""

    class Terminate(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                if args.process_index == 1:
                    torch.distributed.destroy_process_group()
                    os._exit(0)

    with pytest.raises(SystemExit) as caught:
        toy_trainer(folder, parts={"callbacks": [Terminate()]}).train()
    assert caught.value.code == 128 + signal.SIGTERM
    (folder / "ended").touch()
    os._exit(0)


def test_sigterm_ends_a_process_that_waits_for_one_that_left(tmp_path):
    run_in_processes(2, terminate_both, tmp_path)
    assert (tmp_path / "ended").exists()


def test_sigterm_while_finishing_ends_run(tmp_path):
    class AtTheEnd(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        toy_trainer(tmp_path, parts={"callbacks": [AtTheEnd()]}).train()
    assert caught.value.code == 128 + signal.SIGTERM
