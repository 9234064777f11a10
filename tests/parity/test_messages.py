"""Where transformers raises or warns, portico does too, in its words: client code and users' notes match them."""

import json
import logging
import re
import warnings
from types import SimpleNamespace

import datasets
import pytest
import torch
import transformers
from torch.utils.data import IterableDataset

import portico
from models import Line, Points, PointStream, ToyDataset, tiny_bert, toy_arguments
from portico.checkpoint.manifest import MANIFEST_FILE


def trainer_of(library, folder, parts=None, base=None, **changes):
    args = toy_arguments(folder, library.TrainingArguments, **{"max_steps": 1, **changes})
    options = {"model": Line(), "args": args, "train_dataset": Points(), "eval_dataset": Points(6, seed=1)}
    return (base or library.Trainer)(**{**options, **(parts or {})})


def making(parts=None, **changes):
    """A situation that arises when the trainer is made."""
    return lambda library, folder: trainer_of(library, folder, parts, **changes)


def training(parts=None, **changes):
    """A situation that arises in training."""
    return lambda library, folder: trainer_of(library, folder, parts, **changes).train()


class OldCollator:
    def collate_batch(self, examples):
        return {}


class NoLoss(Line):
    def forward(self, x, labels=None):
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.linear(x))


class OldCheckpointing(Line):
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None, **options):
        pass


class Empty(IterableDataset):
    def __iter__(self):
        return iter(())


class NoLength:
    """Data with indices and without a length."""

    def __getitem__(self, index):
        return Points()[0]


def with_attributes(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def quantised(**attributes):
    quantizer = SimpleNamespace(
        is_trainable=attributes.pop("is_trainable", True),
        is_qat_trainable=attributes.pop("is_qat_trainable", False),
        quantization_config=SimpleNamespace(quant_method="four-bit"),
    )
    return with_attributes(Line(), is_quantized=True, hf_quantizer=quantizer, **attributes)


def several_labels():
    return with_attributes(Line(), config=SimpleNamespace(problem_type="multi_label_classification", use_cache=False))


def out_of_memory(library, folder):
    class Full(library.Trainer):
        def prediction_step(self, *args, **kwargs):
            raise RuntimeError("CUDA out of memory.")

    trainer_of(library, folder, base=Full, auto_find_batch_size=True, eval_strategy="steps", eval_steps=1).train()


def loader_without_length(library, folder):
    class Own(library.Trainer):
        def get_train_dataloader(self):
            return (batch for batch in ())

    trainer_of(library, folder, base=Own, max_steps=-1).train()


def checkpoint(library, folder, **changes):
    trainer_of(library, folder, save_strategy="steps", save_steps=1, **changes).train()
    return folder / "checkpoint-1"


def resuming_without_weights(library, folder):
    (folder / "checkpoint-1").mkdir(parents=True)
    trainer_of(library, folder).train(resume_from_checkpoint=str(folder / "checkpoint-1"))


def resuming_under_another_version(library, folder):
    saved = checkpoint(library, folder)
    (saved / "config.json").write_text(json.dumps({"transformers_version": "4.0.0"}), encoding="utf-8")
    (saved / MANIFEST_FILE).unlink(missing_ok=True)
    trainer_of(library, folder, max_steps=2).train(resume_from_checkpoint=str(saved))


def resuming_with_other_keys(library, folder):
    saved = checkpoint(library, folder)

    class Other(torch.nn.Module):
        _keys_to_ignore_on_save = None

        def __init__(self):
            super().__init__()
            self.other = torch.nn.Linear(1, 1)

        def forward(self, x, labels=None):
            return {"loss": (self.other(x).squeeze(-1) - labels).pow(2).mean()}

    trainer = trainer_of(library, folder, {"model": Other()}, max_steps=2)
    trainer.train(resume_from_checkpoint=str(saved))


def resuming_without_the_best(library, folder):
    saved = checkpoint(library, folder)
    state = json.loads((saved / "trainer_state.json").read_text(encoding="utf-8"))
    state["best_model_checkpoint"] = "gone"
    (saved / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    (saved / MANIFEST_FILE).unlink(missing_ok=True)
    trainer_of(library, folder, max_steps=2).train(resume_from_checkpoint=str(saved))


def losing_the_best(library, folder):
    class Losing(transformers.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            for file in (folder / "checkpoint-1").glob("model*"):
                file.unlink()

    steps = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer_of(library, folder, {"callbacks": [Losing()]}, load_best_model_at_end=True, **steps).train()


def restoring_unknown_callbacks(library, folder):
    stopping = transformers.EarlyStoppingCallback()
    steps = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    options = {"metric_for_best_model": "loss", "restore_callback_states_from_checkpoint": True, **steps}
    trainer_of(library, folder, {"callbacks": [stopping]}, load_best_model_at_end=True, **options).train()
    trainer_of(library, folder, **{**options, "max_steps": 2}).train(resume_from_checkpoint=True)


def searching(library, folder):
    pytest.importorskip("optuna")
    trainer = trainer_of(library, folder, {"model": None, "model_init": Line}, eval_strategy="epoch")
    space = {"hp_space": lambda trial: {"num_layers": trial.suggest_int("num_layers", 1, 1)}}
    trainer.hyperparameter_search(n_trials=1, backend="optuna", **space)


def columns():
    return datasets.Dataset.from_dict({"text": ["a"], "title": ["b"]})


OPTIMIZER = torch.optim.SGD(Line().parameters())
EVALUATING = {"eval_strategy": "steps", "eval_steps": 1}
BATCHED = {"batch_eval_metrics": True}

SITUATIONS = {
    "no model": making({"model": None}),
    "model and model_init": making({"model_init": Line}),
    "compiled quantised model": making({"model": quantised(_orig_mod=None)}),
    "quantised model without adapters": making({"model": quantised()}),
    "quantisation without training": making({"model": quantised(is_trainable=False, is_qat_trainable=True)}),
    "fsdp in one process": making(fsdp=True),
    "label smoothing with several labels": making({"model": several_labels()}, label_smoothing_factor=0.1),
    "metric of batches": making({"compute_metrics": lambda prediction: {}}, batch_eval_metrics=True),
    "no evaluation set": making({"eval_dataset": None}, eval_strategy="epoch"),
    "best without a metric": making(save_strategy="best", eval_strategy="epoch"),
    "two optimizers": making({"optimizers": (OPTIMIZER, None), "optimizer_cls_and_kwargs": (torch.optim.SGD, {})}),
    "optimizer of one model": making({"model": None, "model_init": Line, "optimizers": (OPTIMIZER, None)}),
    "old collator": making({"data_collator": OldCollator()}),
    "stream without max_steps": making({"train_dataset": PointStream()}, max_steps=-1),
    "accumulation set twice": making(
        gradient_accumulation_steps=2, accelerator_config={"gradient_accumulation_kwargs": {"num_steps": 5}}
    ),
    "copies without pinned memory": making(accelerator_config={"non_blocking": True}, dataloader_pin_memory=False),
    "model_init with two arguments": making({"model": None, "model_init": lambda trial, other: Line()}),
    "model_init without a model": making({"model": None, "model_init": lambda: None}),
    "spread model": making({"model": with_attributes(Line(), hf_device_map={"": "cpu"})}),
    "no training set": training({"train_dataset": None}),
    "evaluation without a set": lambda library, folder: trainer_of(library, folder, {"eval_dataset": None}).evaluate(),
    "unknown columns": training({"train_dataset": columns()}),
    "empty batch": training({"data_collator": lambda examples: {}}),
    "no loss": training({"model": NoLoss()}),
    "unknown metric": training(
        load_best_model_at_end=True, metric_for_best_model="f1", save_strategy="steps", save_steps=1, **EVALUATING
    ),
    "no main input": training(include_num_input_tokens_seen="all"),
    "no padding": training(
        {"model": tiny_bert(), "train_dataset": ToyDataset(4), "eval_dataset": None},
        include_num_input_tokens_seen="non_padding",
    ),
    "stream without examples": training(
        {"train_dataset": Empty()}, accelerator_config={"dispatch_batches": False}, max_steps=2
    ),
    "order of data without length": training(
        {"train_dataset": NoLength()}, max_steps=1, train_sampling_strategy="group_by_length"
    ),
    "unknown lengths": training(
        {"train_dataset": Points(), "processing_class": None}, train_sampling_strategy="batch_rebalance"
    ),
    "loss function without labels": training(
        {
            "model": NoLoss(),
            "compute_loss_func": lambda outputs, labels, num_items_in_batch=None: outputs.logits.sum(),
            "data_collator": lambda examples: {"x": torch.stack([torch.as_tensor(one["x"]) for one in examples])},
        }
    ),
    "older activation checkpointing": training({"model": OldCheckpointing()}, gradient_checkpointing=True),
    "evaluation out of memory": out_of_memory,
    "loader without length": loader_without_length,
    "nothing to resume": lambda library, folder: trainer_of(library, folder).train(resume_from_checkpoint=True),
    "checkpoint without weights": resuming_without_weights,
    "checkpoint of another version": resuming_under_another_version,
    "checkpoint of another model": resuming_with_other_keys,
    "best checkpoint gone": resuming_without_the_best,
    "best weights gone": losing_the_best,
    "callbacks gone": restoring_unknown_callbacks,
    "search without model_init": lambda library, folder: trainer_of(library, folder).hyperparameter_search(),
    "search over an unknown field": searching,
}


# Warnings that transformers gives once in a process, so that the second library gives none.
UNRELATED = ("Warning: The following arguments do not match",)


def normalised(text):
    """Return ``text`` with the lists in it sorted, which transformers makes of sets, and a missing space added."""
    text = str(text).replace("`TrainingArguments`If", "`TrainingArguments`. If").strip()
    return re.sub(r"(?<=[(\[])[^)\]]*(?=[)\]])", lambda match: ", ".join(sorted(match[0].split(", "))), text)


def heard(situation, library, folder, caplog):
    """Return the error of a situation, and its warnings."""
    caplog.clear()
    error = None
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        try:
            situation(library, folder)
        except Exception as raised:
            error = raised
    logged = [record.getMessage() for record in caplog.records]
    return error, [*logged, *(str(one.message) for one in caught)]


@pytest.mark.parametrize("name", SITUATIONS)
def test_messages_contain_those_of_transformers(name, tmp_path, caplog):
    folder = tmp_path / "run"
    theirs, expected = heard(SITUATIONS[name], transformers, folder, caplog)
    if folder.exists():
        folder.rename(tmp_path / "theirs")
    ours, warned = heard(SITUATIONS[name], portico, folder, caplog)
    assert (ours is None) == (theirs is None), (ours, theirs)
    if theirs is not None:
        assert isinstance(ours, type(theirs))
        assert normalised(theirs.args[0]) in normalised(ours.args[0])
        return
    sentences = [normalised(text) for text in expected if not text.startswith(UNRELATED)]
    assert sentences
    assert [text for text in sentences if not any(text in normalised(one) for one in warned)] == []
