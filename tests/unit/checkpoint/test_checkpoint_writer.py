from pathlib import Path

import pytest

from portico.checkpoint.writer import write_checkpoint
from unit.toy import toy_trainer

FILES = {
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "training_args.bin",
}


@pytest.fixture
def trained(tmp_path):
    trainer = toy_trainer(tmp_path, max_steps=2)
    trainer.train()
    return trainer


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_checkpoint_has_the_files_of_transformers(trained, tmp_path):
    write_checkpoint(trained, str(tmp_path), "checkpoint-2")
    assert names(tmp_path) == {"checkpoint-2"}
    assert names(tmp_path / "checkpoint-2") == FILES


def test_a_checkpoint_is_replaced_as_a_whole(trained, tmp_path):
    write_checkpoint(trained, str(tmp_path), "checkpoint-2")
    (tmp_path / "checkpoint-2" / "stale").write_text("")
    write_checkpoint(trained, str(tmp_path), "checkpoint-2")
    assert names(tmp_path) == {"checkpoint-2"}
    assert names(tmp_path / "checkpoint-2") == FILES


def test_what_an_interrupted_write_left_is_swept(trained, tmp_path):
    (tmp_path / ".partial" / "checkpoint-2").mkdir(parents=True)
    (tmp_path / ".partial" / "checkpoint-2" / "half").write_text("")
    write_checkpoint(trained, str(tmp_path), "checkpoint-2")
    assert names(tmp_path) == {"checkpoint-2"}
    assert "half" not in names(tmp_path / "checkpoint-2")


def test_a_failed_write_keeps_the_checkpoint_that_was_there(trained, tmp_path):
    write_checkpoint(trained, str(tmp_path), "checkpoint-2")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    trained.save_model = fail
    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(trained, str(tmp_path), "checkpoint-2")
    assert names(tmp_path) == {"checkpoint-2"}
    assert names(tmp_path / "checkpoint-2") == FILES


def test_a_hook_sees_the_final_name_and_may_write_beside_it(trained, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "old").write_text("")
    save = trained.save_model

    def save_with_notes(folder, **kwargs):
        save(folder, **kwargs)
        assert Path(folder).name == "checkpoint-2"
        (Path(folder).parent / "notes").mkdir()
        (Path(folder).parent / "notes" / "new").write_text("")

    trained.save_model = save_with_notes
    write_checkpoint(trained, str(tmp_path), "checkpoint-2")
    assert names(tmp_path) == {"checkpoint-2", "notes"}
    assert names(tmp_path / "notes") == {"old", "new"}


def test_only_the_newest_are_kept(tmp_path):
    toy_trainer(tmp_path, save_strategy="steps", save_steps=1, save_total_limit=2).train()
    assert names(tmp_path) == {"checkpoint-9", "checkpoint-10"}


def test_a_machine_that_does_not_save_keeps_its_random_states(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(type(trained.args), "should_save", property(lambda args: False))
    write_checkpoint(trained, str(tmp_path), "checkpoint-2")
    assert names(tmp_path) == {"checkpoint-2"}
    assert names(tmp_path / "checkpoint-2") == {"rng_state.pth"}
