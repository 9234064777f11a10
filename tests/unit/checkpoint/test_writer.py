import json
import os
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers

from models import Line, ToyDataset, tiny_bert, tiny_tokenizer, toy_trainer
from portico import InputError

FILES = {
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "training_args.bin",
    "portico_manifest.json",
    "portico_position.json",
}


@pytest.fixture
def trained(tmp_path):
    trainer = toy_trainer(tmp_path, max_steps=2)
    trainer.train()
    return trainer


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_checkpoint_has_the_files_of_transformers(trained, tmp_path):
    trained._save_checkpoint(trained.model, trial=None)
    assert names(tmp_path) == {"checkpoint-2"}
    assert names(tmp_path / "checkpoint-2") == FILES


def test_failed_write_keeps_existing_checkpoint(trained, tmp_path):
    trained._save_checkpoint(trained.model, trial=None)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    trained.save_model = fail
    with pytest.raises(OSError, match="disk full"):
        trained._save_checkpoint(trained.model, trial=None)
    assert names(tmp_path) == {"checkpoint-2"}
    assert names(tmp_path / "checkpoint-2") == FILES


def test_save_hook_sees_final_name(trained, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "old").write_text("")
    save = trained.save_model

    def save_with_notes(folder, **kwargs):
        save(folder, **kwargs)
        assert Path(folder).name == "checkpoint-2"
        (Path(folder).parent / "notes").mkdir()
        (Path(folder).parent / "notes" / "new").write_text("")

    trained.save_model = save_with_notes
    trained._save_checkpoint(trained.model, trial=None)
    assert names(tmp_path) == {"checkpoint-2", "notes"}
    assert names(tmp_path / "notes") == {"old", "new"}


def test_save_total_limit_keeps_newest(tmp_path):
    toy_trainer(tmp_path, save_strategy="steps", save_steps=1, save_total_limit=2).train()
    assert names(tmp_path) == {"checkpoint-9", "checkpoint-10"}


def test_save_total_limit_goes_by_steps_of_this_run(tmp_path):
    """Neither a clock that was set back nor a longer earlier run makes new checkpoints the oldest."""
    saving = {"save_strategy": "steps", "save_steps": 1}
    toy_trainer(tmp_path, max_steps=3, **saving).train()
    for step in (1, 2, 3):
        os.utime(tmp_path / f"checkpoint-{step}", (time.time() + 3600 * step,) * 2)
    (tmp_path / "checkpoint-3").rename(tmp_path / "checkpoint-90")
    toy_trainer(tmp_path, max_steps=5, save_total_limit=2, **saving).train(str(tmp_path / "checkpoint-2"))
    assert names(tmp_path) == {"checkpoint-4", "checkpoint-5"}


def stale(folder):
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "stale").write_text("")


def half_written(folder):
    (folder / ".partial" / "checkpoint-2").mkdir(parents=True)
    (folder / ".partial" / "checkpoint-2" / "half").write_text("")


def link_to_a_folder(folder):
    (folder / "elsewhere").mkdir()
    (folder / "checkpoint-2").symlink_to(folder / "elsewhere")


def link_to_nothing(folder):
    (folder / "checkpoint-2").symlink_to(folder / "nowhere")


@pytest.mark.parametrize("prepare", [stale, half_written, link_to_a_folder, link_to_nothing])
def test_what_is_in_the_place_of_a_checkpoint_is_replaced(trained, tmp_path, prepare):
    prepare(tmp_path)
    trained._save_checkpoint(trained.model, trial=None)
    assert names(tmp_path) - {"elsewhere"} == {"checkpoint-2"}
    assert names(tmp_path / "checkpoint-2") == FILES
    assert prepare is not link_to_a_folder or not names(tmp_path / "elsewhere")


def test_non_saving_node_writes_its_rng_state(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(type(trained.args), "should_save", property(lambda args: False))
    trained._save_checkpoint(trained.model, trial=None)
    assert names(tmp_path) == {"checkpoint-2"}
    assert names(tmp_path / "checkpoint-2") == {"rng_state.pth"}


BERT_PARTS = {"train_dataset": ToyDataset(8), "eval_dataset": ToyDataset(4)}


def bert_trainer(folder, parts=None, **changes):
    return toy_trainer(folder, parts={"model": tiny_bert(), **BERT_PARTS, **(parts or {})}, max_steps=2, **changes)


def test_saved_model_loads_with_from_pretrained(tmp_path):
    trainer = bert_trainer(tmp_path)
    trainer.train()
    trainer.save_model()
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_save_model_to_given_folder(tmp_path):
    trainer = bert_trainer(tmp_path / "run")
    trainer.save_model(str(tmp_path / "deep" / "er"))
    assert {"model.safetensors", "config.json", "training_args.bin"} <= names(tmp_path / "deep" / "er")


def test_processing_class_is_saved(tmp_path):
    trainer = bert_trainer(tmp_path, parts={"processing_class": tiny_tokenizer()})
    trainer.save_model()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).vocab_size == 50


def test_collator_tokenizer_is_saved(tmp_path):
    collator = transformers.DataCollatorWithPadding(tiny_tokenizer())
    trainer = bert_trainer(tmp_path, parts={"data_collator": collator})
    trainer.train()
    trainer.save_model()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).vocab_size == 50


def test_plain_module_is_saved_and_loaded(tmp_path):
    trainer = toy_trainer(tmp_path, save_strategy="epoch")
    trainer.train()
    trainer.save_model()
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert torch.equal(weights["linear.weight"], trainer.model.linear.weight)
    again = toy_trainer(tmp_path, save_strategy="epoch")
    again.train(resume_from_checkpoint=True)
    assert torch.equal(again.model.linear.weight, trainer.model.linear.weight)


class Tied(Line):
    """A model with two names for one tensor, which safetensors refuses to store twice."""

    def __init__(self):
        super().__init__()
        self.twin = self.linear


def test_module_with_shared_weights_is_saved_and_loaded(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"model": Tied()}, save_strategy="epoch", num_train_epochs=1)
    trainer.train()
    again = toy_trainer(tmp_path, parts={"model": Tied()}, save_strategy="epoch", num_train_epochs=1)
    again.train(resume_from_checkpoint=True)
    assert torch.equal(again.model.twin.weight, trainer.model.linear.weight)


def test_transposed_weight_is_saved(tmp_path):
    model = Line()
    model.linear.weight = torch.nn.Parameter(torch.randn(3, 2).T[:1])
    model.extra = torch.nn.Parameter(torch.randn(3, 2).T)
    trainer = toy_trainer(tmp_path, parts={"model": model})
    trainer.save_model()
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert torch.equal(weights["extra"], model.extra)


def test_metrics_and_state_are_written(tmp_path):
    trainer = toy_trainer(tmp_path)
    output = trainer.train()
    trainer.save_metrics("train", output.metrics)
    trainer.save_metrics("eval", trainer.evaluate())
    trainer.save_state()
    everything = json.loads((tmp_path / "all_results.json").read_text())
    assert {"train_loss", "eval_loss"} <= everything.keys()
    assert json.loads((tmp_path / "trainer_state.json").read_text())["global_step"] == 10


def test_metrics_are_written_beside_damaged_results(tmp_path):
    trainer = toy_trainer(tmp_path)
    (tmp_path / "all_results.json").write_text('{"train_loss":')
    with pytest.raises(InputError, match=r"all_results\.json is not JSON .* are in eval_results\.json only"):
        trainer.save_metrics("eval", {"eval_loss": 1.0})
    assert json.loads((tmp_path / "eval_results.json").read_text()) == {"eval_loss": 1.0}
    assert (tmp_path / "all_results.json").read_text() == '{"train_loss":'


def test_best_checkpoint_is_loaded_and_others_are_deleted(tmp_path):
    trainer = toy_trainer(
        tmp_path,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        save_total_limit=1,
        learning_rate=5.0,
    )
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert names(tmp_path) == {best.rsplit("/", 1)[1]}
    weights = safetensors.torch.load_file(f"{best}/model.safetensors")
    assert torch.equal(weights["linear.weight"], trainer.model.linear.weight)


@pytest.mark.parametrize("save_only_model", [True, False])
def test_resuming_without_optimizer_state_warns(save_only_model, tmp_path, caplog):
    arguments = {"save_strategy": "steps", "save_steps": 4, "save_only_model": save_only_model}
    toy_trainer(tmp_path, **arguments).train()
    again = toy_trainer(tmp_path, **arguments)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert ("optimizer and schedule start afresh" in caplog.text) is save_only_model
    assert ("random numbers continue from the current state" in caplog.text) is save_only_model
    assert again.state.global_step == 10
