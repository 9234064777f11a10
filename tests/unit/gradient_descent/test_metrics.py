"""Tracked metrics, and the report of a training."""

import json

import pytest
import torch

from portico.gradient_descent import ConfigurationError, MetricTracker
from unit.gradient_descent.plain_training import Net, assert_same_weights, make_trainer, weights


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
        ("+accuracy", 1, [float("nan"), 0.9, 0.9], 1, 2),
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


NAN = float("nan")


@pytest.mark.parametrize(
    ("accuracies", "best", "last"),
    [
        ([NAN, 0.6, 0.8, 0.7], 2, 3),
        ([0.6, NAN, 0.8, NAN, NAN], 2, 4),
        ([NAN, NAN, NAN, 0.9], 0, 2),
        ([NAN, -float("inf"), 0.5], 2, 2),
    ],
)
def test_any_number_is_better_than_nan(tmp_path, accuracies, best, last, caplog):
    """In AllenNLP nothing is better than a NaN of the first epoch."""
    trainer = make_trainer(
        tmp_path, model=Scripted(accuracies), num_epochs=len(accuracies), validation_metric="+accuracy", patience=2
    )
    metrics = trainer.train()
    assert (metrics["best_epoch"], metrics["epoch"]) == (best, last)
    assert str(metrics["best_validation_accuracy"]) == str(accuracies[best])
    assert_same_weights(weights(trainer.model), torch.load(tmp_path / "best.th"))
    assert caplog.text.count("is NaN, which is worse than any number: the epoch counts towards the patience") == 1
    assert f"accuracy of epoch {accuracies.index(NAN)} is NaN" in caplog.text


@pytest.mark.parametrize("patience", [2, None])
def test_a_finished_run_has_nothing_left_to_train(tmp_path, patience):
    """AllenNLP trains one more epoch if the patience was used up, and forgets the metrics of a finished run."""
    accuracies = [0.1, 0.5, 0.4, 0.3, 0.2, 0.1][: 3 if patience is None else 6]

    def trainer(**changes):
        options = {"num_epochs": len(accuracies), "validation_metric": "+accuracy", "patience": patience, **changes}
        return make_trainer(tmp_path, model=Scripted(accuracies), **options)

    finished = trainer()
    metrics = finished.train()
    assert metrics["epoch"] == (2 if patience is None else 3)
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for _ in range(2):
        again = trainer()
        assert again.train() == metrics
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == files
        assert_same_weights(weights(again.model), weights(finished.model))
    # Of a run that was killed before it could write the file, and of one to which something was added.
    (tmp_path / "metrics.json").unlink()
    trainer().train()
    assert (tmp_path / "metrics.json").read_bytes() == files[tmp_path / "metrics.json"]
    (tmp_path / "metrics.json").write_text('{"test_accuracy": 0.7, "epoch": 0}')
    trainer().train()
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"test_accuracy": 0.7, **metrics}
    # With more patience or epochs there is something left to train.
    more = {"num_epochs": 4} if patience is None else {"patience": 3}
    assert trainer(**more).train()["epoch"] == metrics["epoch"] + 1


def test_a_second_training_starts_with_all_its_patience():
    trainer = make_trainer(
        model=Scripted([0.5, 0.4, 0.3, 0.2, 0.6]), num_epochs=2, validation_metric="+accuracy", patience=1
    )
    assert trainer.train()["epoch"] == 1
    metrics = trainer.train()
    assert (metrics["best_epoch"], metrics["epoch"]) == (0, 1)


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
