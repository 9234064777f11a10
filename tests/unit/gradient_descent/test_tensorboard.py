"""What TensorBoard reads."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from portico.gradient_descent import (
    ConfigurationError,
    TensoboardBatchMemoryUsage,
    TensorboardBatchMemoryUsage,
    TensorboardWriter,
    TrainerCallback,
    from_params,
)
from unit.gradient_descent.plain_training import Net, make_optimizer, make_trainer


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return scalars, {tag: [event.step for event in events.Histograms(tag)] for tag in events.Tags()["histograms"]}


def single(value):
    """What TensorBoard keeps: single precision."""
    return torch.as_tensor(value).detach().float().item()


def test_scalars_and_histograms(tmp_path):
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
    # A single value has no standard deviation.
    assert "parameter_std/outer.bias" not in scalars
    assert [step for step, _ in scalars["gradient_update/inner.weight"]] == [5, 10]
    assert all(value > 0 for _, value in scalars["gradient_update/inner.weight"])
    assert [step for step, _ in scalars["current_batch_size"]] == [1, 4, 7, 10]
    assert {value for _, value in scalars["mean_batch_size"]} == {2.0}
    assert scalars["loss"][-1] == (2, single(metrics["training_loss"]))
    assert [step for step, _ in scalars["memory_usage/worker_0_cpu"]] == sorted([*range(1, 11), *[5, 10] * 3])
    assert histograms["parameter_histogram/inner.weight"] == [5, 10]
    (activations,) = (steps for tag, steps in histograms.items() if tag.startswith("activation_histogram"))
    # The validation after a step is captured under its number too.
    assert set(activations) == {5, 10}
    scalars, _ = read(tmp_path / "log" / "validation")
    assert scalars["loss"][-1] == (2, single(metrics["validation_loss"]))
    assert scalars["count"] == [(1, 6.0), (2, 6.0)]


def test_default_writer_has_allennlps_interval(tmp_path):
    trainer = make_trainer(tmp_path, num_epochs=1)
    trainer.train()
    scalars, histograms = read(tmp_path / "log" / "train")
    assert "loss" in scalars
    assert "loss/loss_train" not in scalars, "the first summary is that of step 100"
    assert not histograms


def test_nothing_is_written_without_a_folder():
    trainer = make_trainer(num_epochs=1, batch_callbacks=[TensoboardBatchMemoryUsage()])
    trainer.train()
    assert trainer.tensorboard_writer is None
    assert TensoboardBatchMemoryUsage is TensorboardBatchMemoryUsage


def test_interval_of_zero_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="`summary_interval=0` cannot be used; set it to an int >= 1"):
        TensorboardWriter(str(tmp_path), summary_interval=0)


def test_missing_tensorboard_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("portico.gradient_descent.tensorboard.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'portico\[allennlp\]'"):
        TensorboardWriter(str(tmp_path))
    trainer = make_trainer(tmp_path, num_epochs=1)
    assert trainer.tensorboard_writer is None


def test_callback_replaces_the_default_writer(tmp_path):
    config = {"type": "tensorboard", "summary_interval": 2, "distribution_interval": 5}
    callback = from_params(TrainerCallback, config, serialization_dir=str(tmp_path))
    trainer = make_trainer(tmp_path, num_epochs=1, callbacks=[callback])
    trainer.train()
    assert trainer.tensorboard_writer is callback._writer
    assert list((tmp_path / "log" / "train").iterdir())
