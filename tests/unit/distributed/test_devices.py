"""Runs on devices that are not the CPU: tensors are made there, and steps do not wait for it.

The meta device has no values, so what computes with them runs on a stand-in that has.
"""

import numpy as np
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState, PartialState
from lightning.pytorch.loops import evaluation_loop, fit_loop
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import TrainerCallback

import portico
from models import Pairs, ToyDataset, ToyStream, tiny_bert, tiny_t5
from parity.peers import QUIET, collating, untimed
from unit.mrc import small_readers

if torch.__version__ < "2.13":
    pytest.skip("torch 2.13 can add devices in Python", allow_module_level=True)

import stand_in_devices
from stand_in_devices import DEVICE, MetaStrategy

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


class Mixing(portico.Trainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) * torch.ones(1)


class Reading(portico.Trainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss * float(loss.item() > 0)


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

    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        make_trainer(tmp_path, trainer_class=Reading).train()
    with pytest.raises(RuntimeError, match="device"):
        make_trainer(tmp_path, trainer_class=Mixing).train()


# Weights have no values here either.
@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter")
def test_resumed_training_reads_nothing_between_logs(tmp_path):
    on_either(tmp_path, "cpu").train()
    resumed = make_trainer(tmp_path, max_steps=6)
    with pytest.raises(Reached):
        resumed.train(resume_from_checkpoint=str(tmp_path / "cpu" / "checkpoint-3"))


@pytest.mark.parametrize("metric", [None, lambda prediction: {"accuracy": 1.0}], ids=["loss", "predictions"])
def test_evaluation_reads_nothing_between_batches(metric, tmp_path):
    with pytest.raises(Reached):
        make_trainer(tmp_path, parts={"compute_metrics": metric}).evaluate()


def test_evaluation_keeps_no_more_of_the_logits_than_is_wanted(tmp_path):
    whole, num_kept = [], []

    def first_score(logits, labels):
        num_kept.append(sum(not one.expired() for one in whole))
        whole.append(StorageWeakRef(logits.untyped_storage()))
        return logits[:, 0]

    parts = {"compute_metrics": lambda made: {}, "preprocess_logits_for_metrics": first_score}
    with pytest.raises(Reached):
        make_trainer(tmp_path, parts=parts).evaluate()
    assert num_kept == [0, 0, 0]


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


# ---- With values ----

SAVING = {
    "max_steps": 6,
    "logging_steps": 3,
    "save_strategy": "steps",
    "save_steps": 3,
    "logging_nan_inf_filter": False,
}
NEAR = {"rtol": 1e-5, "atol": 1e-7}


class Waits(TrainerCallback):
    """What was waited for in each step."""

    def __init__(self):
        self.by_step = {}

    def on_step_begin(self, args, state, control, **kwargs):
        stand_in_devices.waits.clear()

    def on_step_end(self, args, state, control, **kwargs):
        self.by_step[state.global_step] = list(stand_in_devices.waits)


def on_either(folder, place, *, data=ToyDataset, trainer_class=portico.Trainer, library=portico, **arguments):
    where = {}
    if place != "cpu" and library is portico:
        where = {"use_cpu": False, "strategy": stand_in_devices.StandInStrategy()}
    args = library.TrainingArguments(
        str(folder / place),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        **{**QUIET, "optim": "adamw_torch", "dataloader_pin_memory": False, **SAVING, **arguments, **where},
    )
    if place != "cpu" and library is transformers:
        # Accelerate does not know the device.
        assert args.device.type == "cpu"
        args.__dict__["_setup_devices"] = PartialState._shared_state["device"] = (
            stand_in_devices.StandInAccelerator.device
        )
        args.use_cpu = False
    parts = {"compute_metrics": lambda made: {"largest": float(made.predictions.max())}, "callbacks": [Waits()]}
    return trainer_class(tiny_bert(), args, train_dataset=data(), eval_dataset=ToyDataset(13), **parts)


def weights(model):
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def logs(trainer):
    # The last row has the mean of a run's own steps.
    return [untimed(row) for row in trainer.state.log_history if "train_loss" not in row]


def assert_same_run(one, other):
    torch.testing.assert_close(weights(one.model), weights(other.model), **NEAR)
    for mine, theirs in zip(logs(one), logs(other), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)


def in_new_process(function, *args):
    """Run ``function(*args)`` where torch has computed no gradients yet: it looks for devices before the first."""
    torch.multiprocessing.start_processes(with_device, args=(function, args), nprocs=1, start_method="spawn")


def with_device(rank, function, args):
    stand_in_devices.register()
    function(*args)


def everything_on_the_device(folder, arguments, data):
    device, trainers = stand_in_devices.StandInAccelerator.device, []
    for place in ("cpu", "standin"):
        trainers.append(on_either(folder, place, data=data, **arguments))
        trainers[-1].train()
    on_cpu, on_device = trainers
    assert_same_run(on_device, on_cpu)
    (waited,) = (one.by_step for one in on_device.callback_handler.callbacks if isinstance(one, Waits))
    assert {step: waits for step, waits in waited.items() if waits} == {}
    # Checkpoints of either resume on the other.
    for saved, place in (("standin", "standin"), ("cpu", "standin"), ("standin", "cpu")):
        resumed = on_either(folder / "resumed", place, data=data, **arguments)
        resumed.train(resume_from_checkpoint=str(folder / saved / "checkpoint-3"))
        assert_same_run(resumed, on_cpu)
    names = [{file.name for file in (folder / place / "checkpoint-6").iterdir()} for place in ("cpu", "standin")]
    assert names[0] == names[1]
    # The model stays where it is, also after an evaluation.
    weight = next(on_device.model.parameters())
    predicted = [trainer.predict(ToyDataset(13, seed=2)) for trainer in (on_cpu, on_device)]
    np.testing.assert_allclose(*(one.predictions for one in predicted), **NEAR)
    assert untimed(on_device.evaluate()) == pytest.approx(untimed(on_cpu.evaluate()), rel=1e-4)
    assert next(on_device.model.parameters()) is weight
    assert weight.device == device


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        ({"eval_strategy": "steps", "eval_steps": 3}, ToyDataset),
        # Without corrections the count for the loss is watched by a subclass of tensors, as those of the device have.
        ({"gradient_accumulation_steps": 2, "async_save": True, "corrections": "all"}, ToyDataset),
        ({"activation_checkpointing": True}, ToyDataset),
        ({}, ToyStream),
    ],
    ids=["evaluating", "accumulating", "recomputing", "stream"],
)
def test_device_trains_evaluates_predicts_saves_and_resumes(arguments, data, tmp_path):
    in_new_process(everything_on_the_device, tmp_path, arguments, data)


def same_run_of_both_libraries(folder, arguments, num_waits):
    device = stand_in_devices.StandInAccelerator.device
    # Whole runs, then runs that resume the checkpoint of either.
    for source in (None, transformers, portico):
        runs = []
        for library in (transformers, portico):
            place = folder / str(source and source.__name__) / library.__name__
            AcceleratorState._reset_state(reset_partial_state=True)
            trainer = on_either(place, "standin", library=library, trainer_class=library.Trainer, **arguments)
            trainer.train(
                resume_from_checkpoint=source and str(folder / "None" / source.__name__ / "standin/checkpoint-3")
            )
            (waited,) = (one.by_step for one in trainer.callback_handler.callbacks if isinstance(one, Waits))
            assert {len(waits) for waits in waited.values()} == {num_waits[library.__name__]}
            states = [value for one in trainer.optimizer.state.values() for key, value in one.items() if key != "step"]
            assert {value.device for value in states} == {device}
            runs.append((weights(trainer.model), logs(trainer), untimed(trainer.evaluate())))
        (their_weights, *theirs), (our_weights, *ours) = runs
        assert ours == theirs
        assert all(torch.equal(our_weights[name], tensor) for name, tensor in their_weights.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "theirs", "ours"),
    [
        ({"logging_nan_inf_filter": True}, 2, 1),
        ({"optim": "adamw_torch_fused", "max_grad_norm": 0.0, "eval_strategy": "steps", "eval_steps": 2}, 0, 0),
        ({"label_smoothing_factor": 0.1, "eval_accumulation_steps": 2, "include_num_input_tokens_seen": "all"}, 1, 1),
        ({"gradient_checkpointing": True, "neftune_noise_alpha": 5.0, "lr_scheduler_type": "cosine"}, 0, 0),
    ],
    ids=["defaults", "fused", "counting", "recomputing"],
)
def test_device_gives_the_numbers_of_transformers_and_waits_no_more(arguments, theirs, ours, tmp_path):
    in_new_process(same_run_of_both_libraries, tmp_path, arguments, {"transformers": theirs, "portico": ours})


def texts_on_the_device(folder):
    generated = []
    for where in ({"use_cpu": True}, {"use_cpu": False, "strategy": stand_in_devices.StandInStrategy()}):
        args = portico.Seq2SeqTrainingArguments(
            str(folder),
            predict_with_generate=True,
            max_steps=3,
            **{**QUIET, "dataloader_pin_memory": False, **where},
        )
        trainer = portico.Seq2SeqTrainer(tiny_t5(), args, train_dataset=Pairs(24), **collating(tiny_t5))
        trainer.train()
        made = [trainer.predict(Pairs(7, seed=1), **options) for options in ({"max_length": 9}, {"num_beams": 2})]
        generated.append([one.predictions for one in made])
    for mine, theirs in zip(*generated, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
def test_device_generates(tmp_path):
    in_new_process(texts_on_the_device, tmp_path)


def mistakes_on_the_device(folder):
    with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
        on_either(folder, "standin", trainer_class=Mixing).train()
    reading = on_either(folder, "standin", trainer_class=Reading)
    reading.train()
    (waited,) = (one.by_step for one in reading.callback_handler.callbacks if isinstance(one, Waits))
    assert all(waited.values())


@pytest.mark.slow
def test_device_notices_mixed_tensors_and_waiting(tmp_path):
    in_new_process(mistakes_on_the_device, tmp_path)


def reading_on_the_device(folder):
    sets = small_readers.source(num_validation=20)
    features, answers = None, []
    for where in ({}, {"use_cpu": False, "strategy": stand_in_devices.StandInStrategy()}):
        made = small_readers.reader(sets.train)
        features = features or small_readers.featurized(sets, made.tokenizer)
        trainer = small_readers.make_trainer(
            portico.MRCTrainer,
            made,
            folder / str(len(answers)),
            arguments={"max_steps": 3, "dataloader_pin_memory": False, **where},
            train_dataset=features.train,
            eval_dataset=features.validation,
            eval_examples=sets.validation,
        )
        trainer.train()
        answers.append(
            (untimed(trainer.evaluate()), (folder / str(len(answers)) / "eval_predictions.json").read_text())
        )
    assert answers[0][1] == answers[1][1]
    assert answers[0][0].keys() == answers[1][0].keys()


@pytest.mark.slow
def test_device_answers_questions(tmp_path):
    in_new_process(reading_on_the_device, tmp_path)
