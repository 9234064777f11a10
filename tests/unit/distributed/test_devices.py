"""Runs on a device that is not the CPU: tensors are made there, and steps do not wait for it."""

import pytest
import torch
from lightning.pytorch.loops import evaluation_loop, fit_loop
from transformers import TrainerCallback

import portico
from meta_device import DEVICE, MetaStrategy
from models import Pairs, ToyDataset, ToyStream, tiny_bert, tiny_t5
from parity.peers import QUIET, collating

# On the device nothing has a value, so a run ends before it would log one.
NUM_STEPS = 5


@pytest.fixture(autouse=True)
def lengths_without_device(monkeypatch):
    """At the start of a loop Lightning puts the number of batches on the device, and reads it back."""
    for module in (fit_loop, evaluation_loop):
        monkeypatch.setattr(module, "has_len_all_ranks", lambda loader, *options: len(loader) >= 0)


class Reached(Exception):
    """The run came to where its first value would be read."""


class StopBeforeLog(TrainerCallback):
    def __init__(self):
        self.num_batches = 0

    def on_step_end(self, args, state, control, model, optimizer, **kwargs):
        assert {parameter.device for parameter in model.parameters()} == {DEVICE}
        states = [value for one in optimizer.state.values() for name, value in one.items() if name != "step"]
        assert {value.device for value in states} <= {DEVICE}
        if state.global_step == NUM_STEPS:
            raise Reached

    def on_prediction_step(self, args, state, control, **kwargs):
        self.num_batches += 1
        if self.num_batches == 3:
            raise Reached


def make_trainer(folder, *, model=tiny_bert, trainer_class=portico.Trainer, parts=None, **arguments):
    seq2seq = issubclass(trainer_class, portico.Seq2SeqTrainer)
    arguments_class = portico.Seq2SeqTrainingArguments if seq2seq else portico.TrainingArguments
    args = arguments_class(
        str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        **{
            **QUIET,
            "use_cpu": False,
            "logging_steps": 1000,
            "logging_nan_inf_filter": False,
            "dataloader_pin_memory": False,
            "optim": "adamw_torch",
            **arguments,
        },
        strategy=MetaStrategy(),
    )
    data = {"train_dataset": ToyDataset(), "eval_dataset": ToyDataset(13), **(parts or {})}
    return trainer_class(model(), args, callbacks=[StopBeforeLog()], **data)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"gradient_accumulation_steps": 2},
        {"max_grad_norm": 0.0},
        {"activation_checkpointing": True},
        {"optim": "sgd"},
        {"label_smoothing_factor": 0.1},
        {"average_tokens_across_devices": False},
        {"accelerator_config": {"non_blocking": True}},
        {"corrections": "all"},
    ],
    ids=str,
)
def test_training_stays_on_the_device_and_reads_nothing_between_logs(arguments, tmp_path):
    trainer = make_trainer(tmp_path, **arguments)
    assert trainer.args.device == trainer.accelerator.device == DEVICE
    with pytest.raises(Reached):
        trainer.train()
    assert trainer.module.run.tr_loss.device == DEVICE


def test_stream_is_trained_on_without_waiting(tmp_path):
    with pytest.raises(Reached):
        make_trainer(tmp_path, parts={"train_dataset": ToyStream()}, max_steps=20).train()


def test_reading_a_value_between_logs_fails(tmp_path):
    """The device notices what the tests above look for."""

    class Reading(portico.Trainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            return loss * float(loss.item() > 0)

    class OnCpu(portico.Trainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs) * torch.ones(1)

    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        make_trainer(tmp_path, trainer_class=Reading).train()
    with pytest.raises(RuntimeError, match="device"):
        make_trainer(tmp_path, trainer_class=OnCpu).train()


@pytest.mark.parametrize("metric", [None, lambda prediction: {"accuracy": 1.0}], ids=["loss", "predictions"])
def test_evaluation_reads_nothing_between_batches(metric, tmp_path):
    with pytest.raises(Reached):
        make_trainer(tmp_path, parts={"compute_metrics": metric}).evaluate()


def test_sequences_are_trained_on_the_device(tmp_path):
    parts = {"train_dataset": Pairs(24), **collating(tiny_t5)}
    collate = parts["data_collator"]

    def without_mask(features):
        # Transformers' T5 reads the mask, to leave it out where it hides nothing.
        return {name: tensor for name, tensor in collate(features).items() if name != "attention_mask"}

    parts["data_collator"] = without_mask
    trainer = make_trainer(tmp_path, model=tiny_t5, trainer_class=portico.Seq2SeqTrainer, parts=parts)
    with pytest.raises(Reached):
        trainer.train()


# Torch pins memory only where it finds a device of its own.
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_batches_are_pinned_and_copied_without_waiting(tmp_path, monkeypatch):
    copies = []
    to = torch.Tensor.to

    def recorded(tensor, *args, **kwargs):
        if args and args[0] == DEVICE and tensor.device.type == "cpu":
            copies.append(kwargs.get("non_blocking", False))
        return to(tensor, *args, **kwargs)

    trainer = make_trainer(tmp_path, accelerator_config={"non_blocking": True}, dataloader_pin_memory=True)
    assert trainer.get_train_dataloader().pin_memory
    monkeypatch.setattr(torch.Tensor, "to", recorded)
    with pytest.raises(Reached):
        trainer.train()
    assert len(copies) >= 2 * NUM_STEPS
    assert all(copies)
