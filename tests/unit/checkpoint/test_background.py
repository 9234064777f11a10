import errno
import os
import threading
from pathlib import Path

import pytest
import torch
import transformers

import portico
from models import Sequences, pad_everything, tiny_gpt2, toy_arguments, toy_trainer
from portico.checkpoint import weights
from portico.checkpoint.background import BackgroundWriter
from portico.checkpoint.manifest import examine

SAVING = {"save_strategy": "steps", "save_steps": 2}


def trainer_of(folder, **changes):
    # Tied weights: they are written once, as one tensor.
    return portico.Trainer(
        tiny_gpt2(),
        toy_arguments(folder, max_steps=6, **{**SAVING, "learning_rate": 0.01, **changes}),
        data_collator=pad_everything,
        train_dataset=Sequences(19),
        eval_dataset=Sequences(5, seed=2),
    )


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_checkpoints_are_those_of_a_run_that_waits(tmp_path):
    for name, given in {"later": True, "at_once": False}.items():
        trainer_of(tmp_path / name, async_save=given, save_total_limit=2).train()
    later, at_once = tmp_path / "later", tmp_path / "at_once"
    assert files(later) == files(at_once)
    assert {path.name for path in later.iterdir()} == {"checkpoint-4", "checkpoint-6"}
    for checkpoint in ("checkpoint-4", "checkpoint-6"):
        assert examine(later / checkpoint).damage is None
        for name in ("model.safetensors", "config.json", "scheduler.pt"):
            assert (later / checkpoint / name).read_bytes() == (at_once / checkpoint / name).read_bytes(), name
        states = [torch.load(folder / checkpoint / "optimizer.pt") for folder in (later, at_once)]
        torch.testing.assert_close(*(state["state"] for state in states), rtol=0, atol=0)
    resumed = trainer_of(tmp_path / "resumed", save_strategy="no")
    resumed.train(resume_from_checkpoint=str(later / "checkpoint-4"))
    resumed.save_model()
    last = [folder / "model.safetensors" for folder in (tmp_path / "resumed", at_once / "checkpoint-6")]
    assert last[0].read_bytes() == last[1].read_bytes()


class Steps(transformers.TrainerCallback):
    def __init__(self, at_step):
        self.at_step = at_step

    def on_step_end(self, args, state, control, **kwargs):
        self.at_step(state.global_step)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    goes_on, seen, save = threading.Event(), [], torch.save

    def waiting(state, file, *rest):
        if str(file).endswith("optimizer.pt"):
            assert goes_on.wait(60)
        save(state, file, *rest)

    def look(step):
        seen.append(sorted(path.name for path in tmp_path.glob("checkpoint-*")))
        if step == 4:  # before the next checkpoint, which waits for this one
            goes_on.set()

    monkeypatch.setattr(torch, "save", waiting)
    trainer = trainer_of(tmp_path, async_save=True, load_best_model_at_end=False)
    trainer.add_callback(Steps(look))
    trainer.train()
    assert seen[:4] == [[], [], [], []]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    # What was trained on since is not in it.
    expected = trainer_of(tmp_path / "sync")
    expected.train()
    saved = [folder / "checkpoint-2" / "model.safetensors" for folder in (tmp_path, tmp_path / "sync")]
    assert saved[0].read_bytes() == saved[1].read_bytes()


def test_an_error_in_the_background_ends_the_run_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(weights, "_save_pretrained", full)
    with pytest.raises(OSError, match="No space left on device"):
        trainer_of(tmp_path, async_save=True).train()
    assert files(tmp_path) == set()


def test_a_run_that_fails_completes_its_checkpoint(tmp_path):
    def fail(step):
        if step == 3:
            raise RuntimeError("the fourth step")

    trainer = trainer_of(tmp_path, async_save=True)
    trainer.add_callback(Steps(fail))
    with pytest.raises(RuntimeError, match="the fourth step"):
        trainer.train()
    assert examine(tmp_path / "checkpoint-2").damage is None
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_copies_share_memory_as_the_originals_do():
    writer = BackgroundWriter()
    base = torch.arange(6.0)
    state = {"a": base, "b": base[2:].reshape(2, 2).T, "c": [torch.ones(2)], "d": 3}
    assert writer.copy_state(state) is state
    writer.collect()
    copy = writer.copy_state(state)
    base.zero_()
    assert copy["a"].tolist() == list(range(6))
    assert copy["b"].tolist() == [[2, 4], [3, 5]]
    copy["a"][2] = 9
    assert copy["b"][0, 0] == 9
    assert copy["d"] == 3


def test_memory_of_copies_is_used_again():
    writer, state = BackgroundWriter(), {"a": torch.zeros(4), "b": torch.ones(2)}
    places = []
    for number in range(2):
        state["a"].fill_(number)
        writer.collect()
        copy = writer.copy_state(state)
        writer.start(Path("checkpoint-1"), lambda group: None, uses_collectives=False)
        writer.wait()
        assert copy["a"].tolist() == [number] * 4
        places.append(copy["a"].data_ptr())
        # A tensor of another size may lie at the same address later.
        state["b"].untyped_storage().resize_(4 * (number + 3))
    assert places[0] == places[1]
    writer.release()
    writer.collect()
    assert writer.copy_state(state)["b"].untyped_storage().nbytes() == 16


def test_the_first_copies_have_memory_from_the_first_step_on(tmp_path):
    trainer, found = trainer_of(tmp_path, async_save=True), []

    def look(step):
        trainer._portico.background._join_reservation()
        found.append(len(trainer._portico.background._reusable))

    trainer.add_callback(Steps(look))
    trainer.train()
    # Weights and the two moments and the step of each; tied weights have one memory.
    assert found[:2] == [0, 4 * len(list(trainer.model.parameters()))]
    assert not trainer._portico.background._reusable


def test_uploads_of_unfinished_checkpoints_are_rejected(tmp_path):
    with pytest.raises(
        portico.InputError, match=r"`async_save=True` .* `hub_strategy='every_save'` uploads it at once; set"
    ):
        toy_trainer(tmp_path, async_save=True, push_to_hub=True, **SAVING)
