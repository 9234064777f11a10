"""Who is called when, with what."""

import csv
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerCallback

from portico.gradient_descent import (
    BatchCallback,
    ConfigurationError,
    EndCallback,
    EpochCallback,
    TensoboardBatchMemoryUsage,
    TensorboardBatchMemoryUsage,
    TensorboardWriter,
    TrackEpochCallback,
)
from unit.gradient_descent.plain_training import Net, make_optimizer, make_trainer


class Batch(BatchCallback):
    def __init__(self, calls):
        self.calls = calls

    def __call__(
        self,
        trainer,
        batch_inputs,
        batch_outputs,
        batch_metrics,
        epoch,
        batch_number,
        is_training,
        is_primary,
        **kwargs,
    ):
        assert is_primary
        assert len(batch_inputs) == len(batch_outputs)
        assert all("loss" in outputs for outputs in batch_outputs)
        assert {"batch_loss", "loss", "count"} <= set(batch_metrics)
        if is_training:
            assert all(parameter.grad is not None for parameter in trainer.model.parameters())
        self.calls.append(("batch", epoch, batch_number, is_training, len(batch_inputs)))


class Epoch(EpochCallback):
    def __init__(self, calls):
        self.calls = calls

    def __call__(self, trainer, metrics, epoch, is_primary, **kwargs):
        assert bool(metrics) == (epoch >= 0)
        self.calls.append(("epoch", epoch))


class End(EndCallback):
    def __init__(self, calls):
        self.calls = calls

    def __call__(self, trainer, metrics, epoch, is_primary, **kwargs):
        self.calls.append(("end", epoch, metrics is not None))


def test_the_order_of_calls():
    calls = []
    make_trainer(
        num_epochs=2,
        num_gradient_accumulation_steps=2,
        batch_callbacks=[Batch(calls)],
        epoch_callbacks=[Epoch(calls)],
        end_callbacks=[End(calls)],
    ).train()

    def one_epoch(epoch):
        training = [("batch", epoch, number, True, size) for number, size in ((1, 2), (2, 2), (3, 1))]
        validation = [("batch", epoch, number, False, 1) for number in (1, 2, 3)]
        return [*training, *validation, ("epoch", epoch)]

    assert calls == [("epoch", -1), *one_epoch(0), *one_epoch(1), ("end", 1, True)]


def test_the_end_is_told_when_training_fails():
    class Broken(Net):
        def forward(self, x, labels):
            return {"loss": super().forward(x, labels)["loss"] * float("nan")}

    calls = []
    with pytest.raises(ValueError, match="nan loss encountered"):
        make_trainer(model=Broken(), end_callbacks=[End(calls)]).train()
    assert calls == [("end", None, False)]


def test_callbacks_of_allennlp_1_have_fewer_parameters_and_another_name_for_the_first_process():
    calls = []

    class Old(BatchCallback):
        def __call__(self, trainer, batch_inputs, batch_outputs, epoch, batch_number, is_training, is_master):
            calls.append((epoch, is_master))

    def old_epoch(trainer, metrics, epoch, is_master):
        calls.append((epoch, is_master))

    make_trainer(num_epochs=1, batch_callbacks=[Old()], epoch_callbacks=[old_epoch]).train()
    assert calls == [(-1, True), *[(0, True)] * 9]


def test_the_base_classes_do_nothing():
    make_trainer(
        num_epochs=1,
        batch_callbacks=[BatchCallback()],
        epoch_callbacks=[EpochCallback()],
        end_callbacks=[EndCallback()],
    ).train()


def test_a_callback_with_an_unknown_parameter_is_refused():
    with pytest.raises(ConfigurationError, match=r"requires the unknown argument `loss`; it may take: "):
        make_trainer(batch_callbacks=[lambda loss: None])


def test_a_callback_that_cannot_be_called_is_refused():
    with pytest.raises(ConfigurationError, match="cannot be called; give an object with `__call__`"):
        make_trainer(epoch_callbacks=["track_epoch_callback"])


def test_the_model_can_know_its_epoch():
    trainer = make_trainer(num_epochs=2, epoch_callbacks=[TrackEpochCallback()])
    trainer.train()
    assert trainer.model.epoch == 2


def test_callbacks_of_hugging_face_and_lightning_see_the_same_run(tmp_path):
    events = []

    class OfHuggingFace(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            events.append(("hf step", state.global_step))

        def on_epoch_end(self, args, state, control, **kwargs):
            events.append(("hf epoch", state.epoch))

        def on_log(self, args, state, control, logs, **kwargs):
            if "training_loss" in logs:
                events.append(("hf log", "best_validation_loss" in logs))

        def on_train_end(self, args, state, control, **kwargs):
            events.append(("hf end",))

    class OfLightning(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            events.append(("lightning batch", trainer.global_step))

        def on_train_epoch_end(self, trainer, pl_module):
            events.append(("lightning epoch", "validation_loss" in trainer.callback_metrics))

    table = CSVLogger(tmp_path)
    trainer = make_trainer(num_epochs=1, callbacks=[OfLightning(), OfHuggingFace], loggers=[table])
    metrics = trainer.train()
    steps = [event for step in range(1, 6) for event in (("hf step", step), ("lightning batch", step))]
    assert events == [*steps, ("hf epoch", 1.0), ("hf log", True), ("lightning epoch", True), ("hf end",)]
    table.save()
    with Path(table.experiment.metrics_file_path).open() as file:
        logged = {key: value for row in csv.DictReader(file) for key, value in row.items() if value}
    assert float(logged["training_loss"]) == metrics["training_loss"]
    assert float(logged["validation_loss"]) == metrics["validation_loss"]


def test_a_callback_of_hugging_face_can_stop_and_save(tmp_path):
    class Stopping(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                control.should_save = control.should_training_stop = True

    make_trainer(tmp_path, callbacks=[Stopping()]).train()
    assert (tmp_path / "model_state_e0_b3.th").is_file()


def test_lightning_early_stopping_watches_a_metric():
    stopping = pl.callbacks.EarlyStopping("validation_loss", patience=1, min_delta=10.0)
    trainer = make_trainer(num_epochs=9, callbacks=[stopping])
    assert trainer.train()["epoch"] == 1


def test_other_callbacks_are_refused():
    with pytest.raises(ConfigurationError, match="of AllenNLP 2; those of AllenNLP 1 go to `batch_callb"):
        make_trainer(callbacks=[EpochCallback()])


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return scalars, {tag: [event.step for event in events.Histograms(tag)] for tag in events.Tags()["histograms"]}


def single(value):
    """What TensorBoard keeps: single precision."""
    return torch.as_tensor(value).detach().float().item()


def test_tensorboard_reads_what_was_written(tmp_path):
    seen = {}

    def remember(trainer, is_training, batch_grad_norm=None, batch_metrics=None):
        step = trainer.progress.total_batches
        if is_training and step % 2 == 0:
            weight = trainer.model.inner.weight
            seen[step] = {
                "parameter_mean/inner.weight": weight.mean(),
                "parameter_std/inner.weight": weight.std(),
                "gradient_mean/inner.weight": weight.grad.mean(),
                "gradient_std/inner.weight": weight.grad.std(),
                "parameter_mean/outer.bias": trainer.model.outer.bias.mean(),
                "gradient_norm": batch_grad_norm,
                "learning_rate/inner.weight": trainer.optimizer.param_groups[0]["lr"],
                "loss/loss_train": batch_metrics["loss"],
                "epoch_metrics/loss": batch_metrics["loss"],
                "epoch_metrics/batch_loss": batch_metrics["batch_loss"],
            }

    model = Net()
    model.inner.should_log_activations = True
    optimizer = make_optimizer(model)
    writer = TensorboardWriter(
        str(tmp_path), summary_interval=2, histogram_interval=5, batch_size_interval=3, should_log_learning_rate=True
    )
    trainer = make_trainer(
        tmp_path,
        model=model,
        optimizer=optimizer,
        num_epochs=2,
        grad_norm=1.0,
        tensorboard_writer=writer,
        batch_callbacks=[TensorboardBatchMemoryUsage(), remember],
    )
    assert not (tmp_path / "log").exists()
    metrics = trainer.train()
    scalars, histograms = read(tmp_path / "log" / "train")
    assert sorted(seen) == [2, 4, 6, 8, 10]
    for tag in seen[2]:
        assert scalars[tag] == [(step, single(seen[step][tag])) for step in seen], tag
    # A deviation of a single value is none.
    assert "parameter_std/outer.bias" not in scalars
    assert [step for step, _ in scalars["gradient_update/inner.weight"]] == [5, 10]
    assert all(value > 0 for _, value in scalars["gradient_update/inner.weight"])
    assert [step for step, _ in scalars["current_batch_size"]] == [1, 4, 7, 10]
    assert {value for _, value in scalars["mean_batch_size"]} == {2.0}
    assert scalars["loss"][-1] == (2, single(metrics["training_loss"]))
    assert [step for step, _ in scalars["memory_usage/worker_0_cpu"]] == sorted([*range(1, 11), *[5, 10] * 3])
    assert histograms["parameter_histogram/inner.weight"] == [5, 10]
    (activations,) = (steps for tag, steps in histograms.items() if tag.startswith("activation_histogram"))
    # The validation that follows a step is captured at its number too.
    assert set(activations) == {5, 10}
    scalars, _ = read(tmp_path / "log" / "validation")
    assert scalars["loss"][-1] == (2, single(metrics["validation_loss"]))
    assert scalars["count"] == [(1, 6.0), (2, 6.0)]


def test_a_writer_is_there_by_default_at_allennlps_interval(tmp_path):
    trainer = make_trainer(tmp_path, num_epochs=1)
    trainer.train()
    scalars, histograms = read(tmp_path / "log" / "train")
    assert "loss" in scalars
    assert "loss/loss_train" not in scalars, "the first summary is that of step 100"
    assert not histograms


def test_without_a_folder_nothing_is_written():
    trainer = make_trainer(num_epochs=1, batch_callbacks=[TensoboardBatchMemoryUsage()])
    trainer.train()
    assert trainer.tensorboard_writer is None
    assert TensoboardBatchMemoryUsage is TensorboardBatchMemoryUsage


def test_an_interval_of_zero_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="`summary_interval=0` cannot be used; set it to an int >= 1"):
        TensorboardWriter(str(tmp_path), summary_interval=0)


def test_a_missing_tensorboard_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("portico.gradient_descent.tensorboard.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'portico\[allennlp\]'"):
        TensorboardWriter(str(tmp_path))
    trainer = make_trainer(tmp_path, num_epochs=1)
    assert trainer.tensorboard_writer is None
