"""Tracked metrics, and the report of a training."""

import json

import pytest

from portico.gradient_descent import ConfigurationError, MetricTracker
from unit.gradient_descent.plain_training import Net, make_trainer


class Scripted(Net):
    """A model whose validation accuracy follows a script."""

    def __init__(self, accuracies):
        super().__init__()
        self.accuracies = iter(accuracies)

    def get_metrics(self, reset=False):
        accuracy = next(self.accuracies) if reset and not self.training else 0.0
        return {"accuracy": accuracy, "other": -accuracy}


@pytest.mark.parametrize(
    ("metric", "patience", "accuracies", "best", "last"),
    [
        ("+accuracy", 2, [0.1, 0.5, 0.4, 0.5, 0.9], 1, 3),
        ("-accuracy", 2, [0.3, 0.2, 0.4, 0.1, 0.2, 0.3, 0.0], 3, 5),
        ("+accuracy", 1, [0.5, 0.5, 0.9], 0, 1),
        ("+accuracy", None, [0.5, 0.4, 0.3], 0, 2),
        (["+accuracy", "-other"], 1, [0.1, 0.2, 0.1], 1, 2),
        ("+accuracy", 1, [float("nan"), 0.9, 0.9], 0, 1),
    ],
)
def test_patience(tmp_path, metric, patience, accuracies, best, last):
    trainer = make_trainer(
        tmp_path,
        model=Scripted(accuracies),
        num_epochs=len(accuracies),
        validation_metric=metric,
        patience=patience,
    )
    metrics = trainer.train()
    assert (metrics["best_epoch"], metrics["epoch"]) == (best, last)
    assert metrics["validation_accuracy"] == accuracies[last]
    # The epoch that used up the patience is recorded too.
    assert (tmp_path / f"metrics_epoch_{last}.json").is_file()
    assert not (tmp_path / f"metrics_epoch_{last + 1}.json").exists()
    assert (tmp_path / f"model_state_e{last + 1}_b0.th").is_file()


def test_missing_metric_is_reported_after_the_first_epoch(tmp_path):
    trainer = make_trainer(tmp_path, validation_metric="+f1")
    with pytest.raises(
        ConfigurationError, match=r"use the f1 metric for early stopping, but the model did not .* one of: count, loss"
    ):
        trainer.train()
    assert not list(tmp_path.glob("*.th"))


def test_tracker_state():
    tracker = MetricTracker("-loss", patience=2)
    tracker.add_metrics({"loss": 1.0})
    tracker.add_metrics({"loss": 2.0})
    later = MetricTracker("-loss", patience=2)
    later.load_state_dict(tracker.state_dict())
    assert not later.should_stop_early()
    later.add_metrics({"loss": 1.0})
    assert later.should_stop_early()
    later.clear()
    assert not later.should_stop_early()
    assert later.is_best_so_far()


def test_metrics_have_allennlps_keys():
    metrics = make_trainer(num_epochs=2).train()
    names = {"loss", "count"}
    assert set(metrics) == {
        "best_epoch",
        "peak_worker_0_memory_MB",
        "training_duration",
        "training_start_epoch",
        "training_epochs",
        "epoch",
        "training_worker_0_memory_MB",
        *(f"{kind}_{name}" for kind in ("training", "validation", "best_validation") for name in names),
    }
    assert metrics["training_count"] == 10.0
    assert metrics["validation_count"] == 6.0
    assert metrics["training_duration"].startswith("0:00:0")
    assert metrics["training_worker_0_memory_MB"] > 50


def test_validation_without_loss():
    class LossOfTraining(Net):
        def forward(self, x, labels):
            outputs = super().forward(x, labels)
            return outputs if self.training else {"logits": outputs["logits"]}

    metrics = make_trainer(model=LossOfTraining(), num_epochs=1).train()
    assert metrics["validation_loss"] == 0.0


def test_metrics_files(tmp_path):
    metrics = make_trainer(tmp_path, num_epochs=2).train()
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written == metrics
    assert json.loads((tmp_path / "metrics_epoch_1.json").read_text())["epoch"] == 1
    assert json.loads((tmp_path / "metrics_epoch_0.json").read_text())["epoch"] == 0
    assert (tmp_path / "best.th").is_file()
