import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

import portico
from models import Points, toy_arguments, toy_trainer
from portico.checkpoint.manifest import MANIFEST_FILE
from portico.checkpoint.resume import find_checkpoint, load_rng_state, read_state, save_rng_state
from portico.errors import InputError


def test_no_checkpoint_without_resume(tmp_path):
    assert find_checkpoint(None, str(tmp_path)) is find_checkpoint(False, str(tmp_path)) is None


def test_last_checkpoint_is_highest_number(tmp_path):
    for step in (9, 10, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    (tmp_path / ".partial" / "checkpoint-11").mkdir(parents=True)
    assert find_checkpoint(True, str(tmp_path)) == str(tmp_path / "checkpoint-10")


def test_named_checkpoint_is_used(tmp_path):
    (tmp_path / "trainer_state.json").write_text("{}")
    assert find_checkpoint(str(tmp_path), "elsewhere") == str(tmp_path)


def test_missing_checkpoint_is_rejected(tmp_path):
    with pytest.raises(InputError, match="leave it out to start from scratch"):
        find_checkpoint(True, str(tmp_path / "gone"))
    with pytest.raises(InputError, match="is not a folder"):
        find_checkpoint(str(tmp_path / "gone"), str(tmp_path))


def test_folder_without_trainer_state_is_refused_as_by_transformers(tmp_path, caplog):
    toy_trainer(tmp_path, save_strategy="steps", save_steps=4, max_steps=8).train()
    (tmp_path / "checkpoint-8" / "trainer_state.json").unlink()
    folder = str(tmp_path / "checkpoint-8")
    for library in (transformers, portico):
        trainer = toy_trainer(tmp_path, library.Trainer, {"args": toy_arguments(tmp_path, library.TrainingArguments)})
        with pytest.raises(FileNotFoundError, match=r"trainer_state\.json"):
            trainer.train(resume_from_checkpoint=folder)
    with pytest.raises(InputError, match=r"the step .* is unknown; .* Set `resume_from_checkpoint='.*checkpoint-4'`"):
        find_checkpoint(folder, "elsewhere")
    (tmp_path / "checkpoint-8" / MANIFEST_FILE).unlink()
    assert find_checkpoint(True, str(tmp_path)) == str(tmp_path / "checkpoint-4")
    assert "checkpoint-8 is damaged, so it is skipped: trainer_state.json is missing" in caplog.text


def test_deleted_best_checkpoint_is_forgotten(tmp_path, caplog):
    saving = {"save_strategy": "steps", "save_steps": 4}
    trainer = toy_trainer(tmp_path, **saving)
    trainer.train()
    file = tmp_path / "checkpoint-4" / "trainer_state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "best_model_checkpoint": "gone"}))
    assert read_state(str(tmp_path / "checkpoint-4"), trainer.args).best_model_checkpoint is None
    assert "recorded in the resumed state does not exist anymore" in caplog.text


RESTORING = {"save_strategy": "steps", "save_steps": 4, "restore_callback_states_from_checkpoint": True}


class Counter(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):
    def __init__(self, count=0):
        self.count = count

    def on_step_end(self, args, state, control, **kwargs):
        self.count += 1

    def state(self):
        return {"args": {"count": self.count}, "attributes": {}}


class Named(Counter):
    """Counts every step under the first name and every other step under the second; saves no attributes."""

    def __init__(self, name="", count=0):
        super().__init__(count)
        self.name = name

    def on_step_end(self, args, state, control, **kwargs):
        self.count += 1 if self.name == "all" else state.global_step % 2

    def state(self):
        return {"args": {"name": self.name, "count": self.count}}


def test_callbacks_of_one_class_are_restored_each_with_its_own_state(tmp_path):
    toy_trainer(tmp_path, parts={"callbacks": [Named("all"), Named("odd")]}, **RESTORING).train()
    again = toy_trainer(tmp_path, parts={"callbacks": [Named("all"), Named("odd")]}, **RESTORING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    counts = {one.name: one.count for one in again.callback_handler.callbacks if isinstance(one, Named)}
    assert counts == {"all": 10, "odd": 5}


def test_callback_state_without_attributes_or_arguments(tmp_path):
    class Bare(Counter):
        def state(self):
            return {"attributes": {"count": self.count}}

    toy_trainer(tmp_path, parts={"callbacks": [Bare()]}, **RESTORING).train()
    again = toy_trainer(tmp_path, parts={"callbacks": [Bare()]}, **RESTORING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert again.pop_callback(Bare).count == 10


def test_callback_states_are_restored(tmp_path, caplog):
    toy_trainer(tmp_path, parts={"callbacks": [Counter]}, **RESTORING).train()
    again = toy_trainer(tmp_path, parts={"callbacks": [Counter]}, **RESTORING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.pop_callback(Counter).count == 10
    without = toy_trainer(tmp_path, **RESTORING)
    without.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert "not included in current configuration. Ignoring. (Counter)" in caplog.text


ALONE = SimpleNamespace(world_size=1, process_index=0)


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_every_random_generator_is_restored(tmp_path):
    save_rng_state(str(tmp_path), ALONE)
    expected = draw()
    assert draw() != expected
    load_rng_state(str(tmp_path), ALONE)
    assert draw() == expected


def test_each_process_has_its_rng_file(tmp_path):
    save_rng_state(str(tmp_path), SimpleNamespace(world_size=2, process_index=1))
    assert [file.name for file in tmp_path.iterdir()] == ["rng_state_1.pth"]


def test_missing_rng_file_warns(tmp_path, caplog):
    load_rng_state(str(tmp_path), ALONE)
    assert "random numbers continue from the current state" in caplog.text


def test_loading_rng_without_folder_does_nothing(caplog):
    before = torch.get_rng_state()
    load_rng_state(None, ALONE)
    assert torch.equal(torch.get_rng_state(), before)
    assert not caplog.text


@pytest.mark.parametrize("restores", [False, True])
def test_patience_that_starts_afresh_is_announced(restores, tmp_path, caplog):
    scores = [0.5, 0.4, 0.45, 0.46, 0.47, 0.48, 0.49, 0.5]

    def stopping(**changes):
        made = toy_trainer(
            tmp_path,
            parts={
                "train_dataset": Points(2),
                "compute_metrics": lambda prediction: {"score": scores[made.state.global_step - 1]},
                "callbacks": [transformers.EarlyStoppingCallback(3)],
            },
            num_train_epochs=8,
            eval_strategy="epoch",
            metric_for_best_model="score",
            greater_is_better=False,
            load_best_model_at_end=True,
            **{"save_strategy": "epoch", **changes},
        )
        return made

    whole = stopping()
    whole.train()
    assert whole.state.global_step == 5
    assert "starts afresh" not in caplog.text
    resumed = stopping(restore_callback_states_from_checkpoint=restores)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.state.global_step == (5 if restores else 7)
    told = "`EarlyStoppingCallback` starts afresh in the resumed run" in caplog.text
    assert told == (not restores)
