"""Files of a checkpoint that are uploaded as the model."""

import json
from types import SimpleNamespace

from models import toy_trainer


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
