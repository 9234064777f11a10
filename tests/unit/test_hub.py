"""Files of a checkpoint that are uploaded as the model."""

import json
import os
from types import SimpleNamespace

import pytest

from models import toy_trainer
from portico.hub import add_earlier_tags, write_model_card


def test_sharded_weights_are_uploaded(tmp_path, monkeypatch):
    uploaded = []

    def upload_folder(**options):
        uploaded.append(options)
        return SimpleNamespace(done=lambda: True)

    hub = SimpleNamespace(upload_folder=upload_folder)
    monkeypatch.setattr("portico.compat.transformers.hf_api", lambda: hub)
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    for name in (*shards.values(), "optimizer.pt", "config.json"):
        (checkpoint / name).write_text("")
    trainer = toy_trainer(tmp_path, save_strategy="steps")
    trainer.hub_model_id = "me/run"
    trainer._push_from_checkpoint(str(checkpoint))
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "config.json",
        "model.safetensors.index.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "training_args.bin",
    }
    assert uploaded[0]["commit_message"] == "Training in progress, step 0"
    trainer._finish_current_push()


def test_only_main_process_uploads(tmp_path, monkeypatch):
    trainer = toy_trainer(tmp_path)
    monkeypatch.setattr(type(trainer), "is_world_process_zero", lambda self: False)
    # Any other call would access the hub.
    trainer._push_from_checkpoint(str(tmp_path / "checkpoint-1"))
    trainer.init_hf_repo()
    trainer.create_model_card()
    assert trainer.hub_model_id is None
    assert not (tmp_path / "README.md").exists()


CARD = "---\nlibrary_name: transformers\ntags:\n- earlier\n---\ntext"
DAMAGED = {
    "another encoding": b"---\ntags: [\xff]\n---\n",
    "a list": b"---\n- earlier\n---\n",
    "no YAML": b"---\ntags: [\n---\n",
    "a tag of YAML": b"---\ntags: !!python/object/apply:os.mkdir [canary]\n---\n",
    "names that are numbers": b"---\n1: 2\n---\n",
    "results of another form": b"---\nmodel-index: 5\n---\n",
    "tags that are a number": b"---\ntags: 7\n---\n",
    "great depth": b"---\ntags: " + b"[" * 400 + b"\n---\n",
}


def test_the_tags_of_an_earlier_card_are_kept(tmp_path):
    (tmp_path / "README.md").write_bytes(b"\xef\xbb\xbf" + CARD.encode())  # with the mark of an editor
    assert add_earlier_tags(str(tmp_path), ["new"]) == ["new", "earlier"]
    assert add_earlier_tags(str(tmp_path), "new") == ["new", "earlier"]
    assert add_earlier_tags(str(tmp_path), None) is None


@pytest.mark.parametrize("kind", [*DAMAGED, "a pipe", "a folder", "a link in a circle", "5 TB of nothing"])
def test_a_card_that_cannot_be_read_is_replaced(kind, tmp_path, monkeypatch):
    """It may come with a folder that somebody sent, and the training before it has taken hours."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    card = run / "README.md"
    if kind in DAMAGED:
        card.write_bytes(DAMAGED[kind])
    elif kind == "a pipe":
        os.mkfifo(card)
    elif kind == "5 TB of nothing":
        with card.open("wb") as file:
            file.truncate(5 << 40)
    else:
        (tmp_path / "elsewhere").mkdir()
        card.symlink_to(tmp_path / "elsewhere" if kind == "a folder" else card)
    assert add_earlier_tags(str(run), ["new"]) == ["new"]
    write_model_card(SimpleNamespace(to_model_card=lambda: CARD), str(run), None)
    assert card.read_text() == CARD
    assert not card.is_symlink()
    assert not (tmp_path / "canary").exists()
