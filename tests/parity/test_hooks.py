"""Each hook that a subclass may override is called at the same steps as under transformers."""

import pytest
import torch
import transformers

import portico
from parity.peers import run

HOOKS = [
    "_determine_best_metric",
    "_evaluate",
    "_finalize_training",
    "_finish_current_push",
    "_get_learning_rate",
    "_get_output_dir",
    "_init_training_state",
    "_inner_training_loop",
    "_issue_warnings_after_load",
    "_load_best_model",
    "_load_callback_state",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_rng_state",
    "_load_scaler",
    "_maybe_log_save_evaluate",
    "_move_model_to_device",
    "_save",
    "_save_checkpoint",
    "_save_optimizer_and_scheduler",
    "_save_rng_state",
    "_save_scaler",
    "_validate_args",
    "_wrap_model",
    "create_accelerator_and_postprocess",
    "create_optimizer",
    "create_scheduler",
    "evaluate",
    "evaluation_loop",
    "get_eval_dataloader",
    "get_total_train_batch_size",
    "get_train_dataloader",
    "log",
    "save_model",
    "set_initial_training_values",
    "store_flos",
]
SAVING = {
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "save_steps": 3,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "num_train_epochs": 1,
}


def recording(calls):
    """Return a function that makes a subclass which records each call of a hook."""

    def note(name):
        def hook(self, *args, **kwargs):
            state = getattr(self, "state", None)
            calls.setdefault(name, []).append(None if state is None else state.global_step)
            return getattr(super(self.recorder, self), name)(*args, **kwargs)

        return hook

    def subclass(base):
        recorder = type("Recording", (base,), {name: note(name) for name in HOOKS})
        recorder.recorder = recorder
        return recorder

    return subclass


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the recorded calls of a resumed run of each library."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for library in (transformers, portico):
        run(library, folder / library.__name__, **SAVING)
        calls = found[library.__name__] = {}
        resume = str(folder / library.__name__ / "checkpoint-3")
        run(library, folder / library.__name__, base=recording(calls), resume=resume, **SAVING)
    return found


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_is_called_at_same_steps(hook, recorded):
    theirs, ours = recorded["transformers"].get(hook), recorded["portico"].get(hook)
    assert theirs, "transformers itself calls it"
    assert ours == theirs


def test_model_is_moved_at_the_same_steps_if_evaluations_cast_it(tmp_path):
    moves = []
    for library in (transformers, portico):
        calls = {}
        run(library, tmp_path / library.__name__, base=recording(calls), bf16_full_eval=True, max_steps=2)
        moves.append(calls.get("_move_model_to_device"))
    assert moves == [[0], [0]]


def test_overridden_initial_values_take_effect(tmp_path):
    def shorter(base):
        class Shorter(base):
            def set_initial_training_values(self, args, dataloader):
                return (*super().set_initial_training_values(args, dataloader)[:-1], 3)

        return Shorter

    ours, theirs = (
        run(library, tmp_path / library.__name__, base=shorter, num_train_epochs=1)
        for library in (portico, transformers)
    )
    assert ours.trainer.state.max_steps == theirs.trainer.state.max_steps == 3
    assert ours.history == theirs.history


def test_training_uses_wrapped_model(tmp_path):
    def wrapped(base):
        class Wrapping(base):
            def _wrap_model(self, model, training=True):
                return torch.nn.DataParallel(model) if training else model

        return Wrapping

    outcome = run(portico, tmp_path, base=wrapped, max_steps=2)
    assert type(outcome.trainer.model_wrapped).__name__ == "DataParallel"
    plain = run(portico, tmp_path, max_steps=2)
    assert outcome.history == plain.history


def test_overridden_inner_training_loop(tmp_path):
    class Idle(portico.Trainer):
        def _inner_training_loop(self, batch_size=None, args=None, resume_from_checkpoint=None, **kwargs):
            return batch_size, args is self.args, resume_from_checkpoint, sorted(kwargs)

    trainer = run(portico, tmp_path, max_steps=1).trainer
    trainer.__class__ = Idle
    assert trainer.train() == (4, True, None, ["ignore_keys_for_eval", "trial"])
