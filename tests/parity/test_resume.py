"""Either library resumes the checkpoints of either, and ends with the weights of an uninterrupted run."""

import os
import signal
import time

import pytest
import safetensors.torch
import torch
import transformers
from transformers import TrainerCallback
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

import portico
from models import ToyDataset
from parity.peers import assert_identical, assert_same_checkpoint, assert_same_values, compare, load_trusted, run
from parity.scenarios import REBALANCED, SHRINKING, out_of_memory_beyond
from portico.checkpoint.manifest import OWN_FILES

LIBRARIES = {"transformers": transformers, "portico": portico}
SAVING = {
    "save_strategy": "steps",
    "save_steps": 1,
    "gradient_accumulation_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 2,
}


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == self.step


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the outcome of a training by transformers and its output folder."""
    folder = tmp_path_factory.mktemp("whole")
    return run(transformers, folder, **SAVING), folder


@pytest.mark.parametrize("step", range(1, 7))
@pytest.mark.parametrize(
    ("first", "second"), [("transformers", "portico"), ("portico", "transformers"), ("portico",) * 2]
)
def test_resumed_run_equals_uninterrupted_run(first, second, step, uninterrupted, tmp_path):
    whole, saved = uninterrupted
    run(LIBRARIES[first], tmp_path, callbacks=[lambda: StopAt(step)], **SAVING)
    resumed = run(LIBRARIES[second], tmp_path, resume=str(tmp_path / f"checkpoint-{step}"), **SAVING)
    for name, tensor in whole.weights.items():
        assert torch.equal(resumed.weights[name], tensor), name
    assert resumed.history[:-1] == whole.history[:-1]
    if step < 6:
        # A finished run has no epoch left in which random states would be restored.
        assert torch.equal(resumed.rng, whole.rng)
    # The checkpoint at `step` records that the run was stopped.
    for number in range(step + 1, 7):
        assert_same_checkpoint(tmp_path / f"checkpoint-{number}", saved / f"checkpoint-{number}")


@pytest.mark.parametrize("ignore_data_skip", [False, True])
def test_same_events_after_resume(ignore_data_skip, tmp_path):
    options = {**SAVING, "train_dataset": lambda: ToyDataset(draws=True), "ignore_data_skip": ignore_data_skip}
    run(transformers, tmp_path, callbacks=[lambda: StopAt(4)], **options)
    theirs = run(transformers, tmp_path, resume=True, **options)
    for folder in tmp_path.glob("checkpoint-[56]"):
        folder.rename(tmp_path / f"theirs-{folder.name}")
    ours = run(portico, tmp_path, resume=True, **options)
    assert ours.events == theirs.events
    assert ours.history == theirs.history
    assert ours.train_output.training_loss == theirs.train_output.training_loss


def test_resume_of_finished_run(tmp_path):
    run(portico, tmp_path, **SAVING)
    theirs = run(transformers, tmp_path, resume=True, **SAVING)
    ours = run(portico, tmp_path, resume=True, **SAVING)
    assert ours.events == theirs.events
    assert ours.train_output.global_step == theirs.train_output.global_step == 6


def test_callback_states_are_restored(tmp_path):
    def patient():
        return transformers.EarlyStoppingCallback(early_stopping_patience=50)

    options = {
        **SAVING,
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
        "save_steps": 2,
        "callbacks": [patient],
        "restore_callback_states_from_checkpoint": True,
    }
    run(portico, tmp_path, max_steps=4, **options)
    resumed = run(portico, tmp_path, resume=True, **options)
    theirs = run(transformers, tmp_path, resume=str(tmp_path / "checkpoint-4"), **options)
    assert resumed.trainer.state.stateful_callbacks == theirs.trainer.state.stateful_callbacks


def test_same_checkpoint_files(tmp_path):
    run(transformers, tmp_path / "run", **SAVING)
    (tmp_path / "run").rename(tmp_path / "theirs")
    run(portico, tmp_path / "run", **SAVING)
    for number in range(1, 7):
        name = f"checkpoint-{number}"
        assert_same_checkpoint(tmp_path / "run" / name, tmp_path / "theirs" / name)


def test_arguments_unpickle_as_transformers_class(tmp_path):
    saved = []
    for library in (transformers, portico):
        run(library, tmp_path, **SAVING)
        saved.append(load_trusted(tmp_path / "checkpoint-1" / "training_args.bin"))
    theirs, ours = saved
    assert type(ours) is transformers.TrainingArguments
    assert ours.gradient_accumulation_steps == 3
    assert ours.to_dict() == theirs.to_dict()


def test_weights_round_trip(tmp_path):
    outcome = run(portico, tmp_path, **SAVING)
    saved = safetensors.torch.load_file(tmp_path / "checkpoint-6" / "model.safetensors")
    assert all(torch.equal(saved[name], outcome.weights[name]) for name in saved)


def resumed_by_both(folder, *, base=None, **options):
    """Train with transformers, resume from step 3 with both libraries, and compare these two runs."""
    whole = run(transformers, folder / "run", base=base, save_strategy="steps", save_steps=3, **options)
    resume = str(folder / "run" / "checkpoint-3")
    theirs, ours = (run(library, folder / "run", resume=resume, **options) for library in LIBRARIES.values())
    assert_identical(ours, theirs)
    return whole, ours


def test_resumed_run_keeps_reduced_batch_size(tmp_path):
    whole, ours = resumed_by_both(tmp_path, base=out_of_memory_beyond(2), **SHRINKING)
    assert ours.trainer._train_batch_size == 2
    assert all(torch.equal(tensor, whole.weights[name]) for name, tensor in ours.weights.items())


def test_same_numbers_after_resume_with_batch_rebalancing(tmp_path):
    resumed_by_both(tmp_path, **REBALANCED)


def terminated(trainer_class):
    class Terminated(trainer_class):
        def compute_loss(self, model, inputs, *args, **kwargs):
            if model.training and self.state.global_step == 3:
                callbacks = self.callback_handler.callbacks
                manager = next(one for one in callbacks if isinstance(one, JITCheckpointCallback)).jit_manager
                manager.kill_wait = 0
                os.kill(os.getpid(), signal.SIGTERM)
                while not manager.is_checkpoint_requested:
                    time.sleep(0.01)
            return super().compute_loss(model, inputs, *args, **kwargs)

    return Terminated


def test_same_checkpoint_on_sigterm(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    ours, _ = compare(tmp_path, base=terminated, enable_jit_checkpoint=True)
    assert ours.train_output.global_step == 4
    assert signal.getsignal(signal.SIGTERM) is before
    files = [{path.name for path in (tmp_path / name / "checkpoint-3").iterdir()} for name in ("same", "theirs")]
    assert files[0] - set(OWN_FILES) == files[1]
    for name in ("optimizer.pt", "scheduler.pt"):
        assert_same_values(*(torch.load(tmp_path / run / "checkpoint-3" / name) for run in ("same", "theirs")))
