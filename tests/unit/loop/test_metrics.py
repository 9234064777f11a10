"""Metrics of torchmetrics, and metric functions that are called per batch."""

import json

import pytest
import torch
from torch.utils.data import Dataset
from torchmetrics import ConfusionMatrix, MeanMetric, MeanSquaredError, MetricCollection, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from transformers import TrainerCallback

from models import Line, Points, toy_trainer
from portico.errors import InputError


class Classes(Dataset):
    """Logits of three classes, with the label."""

    def __init__(self, size=7):
        generator = torch.Generator().manual_seed(2)
        self.scores = torch.randn(size, 3, generator=generator)
        self.right = torch.randint(0, 3, (size,), generator=generator)

    def __len__(self):
        return len(self.right)

    def __getitem__(self, index):
        return {"scores": self.scores[index], "labels": self.right[index]}


class Parrot(torch.nn.Module):
    """A model that returns its input as logits."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, scores, labels=None):
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


def classifier(tmp_path, metrics, eval_dataset=None, **changes):
    parts = {"model": Parrot(), "compute_metrics": metrics, "eval_dataset": eval_dataset or Classes()}
    return toy_trainer(tmp_path, parts={**parts, "train_dataset": Classes()}, **changes)


def accuracy(data):
    return (data.scores.argmax(-1) == data.right).float().mean().item()


def test_metric_is_named_after_its_class(tmp_path):
    metric = MulticlassAccuracy(3, average="micro")
    metrics = classifier(tmp_path, metric).evaluate()
    assert metrics["eval_MulticlassAccuracy"] == pytest.approx(accuracy(Classes()))
    assert isinstance(metrics["eval_MulticlassAccuracy"], float)
    assert not metric.update_called


@pytest.mark.parametrize("changes", [{}, {"batch_eval_metrics": True}, {"eval_do_concat_batches": False}])
def test_metrics_of_a_dict_use_its_keys(changes, tmp_path):
    metrics = {"accuracy": MulticlassAccuracy(3, average="micro"), "f1": MulticlassF1Score(3, average="micro")}
    trainer = classifier(tmp_path, metrics, **changes)
    for size in (7, 4):
        result = trainer.evaluate(Classes(size), metric_key_prefix="x")
        assert result["x_accuracy"] == result["x_f1"] == pytest.approx(accuracy(Classes(size)))


def test_metric_collection_keeps_its_names(tmp_path):
    collection = MetricCollection({"a": MulticlassAccuracy(3, average="micro")}, prefix="my_")
    assert "eval_my_a" in classifier(tmp_path, collection).evaluate()


def test_streaming_metrics_keep_no_logits(tmp_path):
    trainer = classifier(tmp_path, MulticlassAccuracy(3))
    output = trainer.evaluation_loop(trainer.get_eval_dataloader(), description="Evaluation")
    assert output.predictions is None
    assert output.label_ids is None
    assert "eval_loss" in output.metrics


def test_prediction_has_arrays_and_metrics(tmp_path):
    output = classifier(tmp_path, {"accuracy": MulticlassAccuracy(3, average="micro")}).predict(Classes(5))
    assert torch.equal(torch.from_numpy(output.predictions), Classes(5).scores)
    assert output.label_ids.tolist() == Classes(5).right.tolist()
    assert output.metrics["test_accuracy"] == pytest.approx(accuracy(Classes(5)))


def ones_of(logits, labels):
    return torch.ones(len(labels))


def test_metrics_get_preprocessed_logits(tmp_path):
    metrics = {"sum": SumOfPredictions()}
    parts = {
        "compute_metrics": metrics,
        "preprocess_logits_for_metrics": lambda logits, labels: torch.ones(len(labels)),
    }
    assert toy_trainer(tmp_path, parts=parts).evaluate(Points(5))["eval_sum"] == 5


class SumOfPredictions(SumMetric):
    def update(self, preds, target):
        super().update(preds)


def test_metric_counts_gathered_examples_once(tmp_path):
    def in_two_processes(tensor, group=None):
        return [tensor, tensor]

    metric = SumOfPredictions(dist_sync_fn=in_two_processes, distributed_available_fn=lambda: True)
    metric.update(torch.ones(1), None)
    assert metric.compute() == 2, "on its own it does synchronise"
    parts = {
        "compute_metrics": {"sum": metric},
        "preprocess_logits_for_metrics": lambda logits, labels: labels * 0 + 1,
    }
    assert toy_trainer(tmp_path, parts=parts).evaluate(Points(5))["eval_sum"] == 5
    metric.update(torch.ones(1), None)
    assert metric.compute() == 2, "and does so again"


def test_metric_is_reset_after_failed_evaluation(tmp_path):
    class Breaks(MeanSquaredError):
        broken = True

        def update(self, preds, target):
            super().update(preds, target)
            if self.broken:
                raise RuntimeError("broken")

    metric = Breaks()
    trainer = toy_trainer(tmp_path, parts={"compute_metrics": {"mse": metric}})
    with pytest.raises(RuntimeError, match="broken"):
        trainer.evaluate()
    metric.broken = False
    first = trainer.evaluate()["eval_mse"]
    assert trainer.evaluate()["eval_mse"] == first


def test_nested_evaluation_has_its_own_metric_state(tmp_path):
    class Nests(TrainerCallback):
        depth = 0

        def on_prediction_step(self, args, state, control, **kwargs):
            if self.depth == 0:
                self.depth += 1
                self.inner = self.trainer.evaluate(Classes(4))["eval_accuracy"]

    nests = Nests()
    metrics = {"accuracy": MulticlassAccuracy(3, average="micro")}
    nests.trainer = trainer = classifier(tmp_path, metrics)
    trainer.add_callback(nests)
    assert trainer.evaluate()["eval_accuracy"] == pytest.approx(accuracy(Classes()))
    assert nests.inner == pytest.approx(accuracy(Classes(4)))


def test_tensor_results_become_lists(tmp_path):
    metrics = {"matrix": ConfusionMatrix(task="multiclass", num_classes=3), "mean": MeanOfTwo()}
    trainer = classifier(tmp_path, metrics)
    result = trainer.evaluate()
    assert sum(map(sum, result["eval_matrix"])) == 7
    assert result["eval_first"] == 1.0
    assert result["eval_both"] == [1.0, [2.0]]
    json.dumps(trainer.state.log_history)


class MeanOfTwo(MeanMetric):
    def update(self, preds, target):
        super().update(torch.ones(1))

    def compute(self):
        mean = super().compute()
        return {"first": mean, "both": (mean, [mean + 1])}


@pytest.mark.parametrize("data", [Classes(0), None])
def test_no_metric_without_batches_or_logits(data, tmp_path):
    trainer = classifier(tmp_path, {"accuracy": MulticlassAccuracy(3)}, prediction_loss_only=data is None)
    assert "eval_accuracy" not in trainer.evaluate(data)


def test_best_model_by_torchmetrics_metric(tmp_path):
    parts = {"compute_metrics": {"mse": MeanSquaredError()}, "model": Line()}
    trainer = toy_trainer(
        tmp_path,
        parts=parts,
        eval_strategy="epoch",
        save_strategy="best",
        metric_for_best_model="mse",
        greater_is_better=False,
    )
    trainer.train()
    assert trainer.state.best_metric == min(
        entry["eval_mse"] for entry in trainer.state.log_history if "eval_mse" in entry
    )


def test_failing_update_names_its_inputs(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"compute_metrics": MulticlassAccuracy(3)})
    with pytest.raises((ValueError, RuntimeError)) as caught:
        trainer.evaluate()
    (note,) = caught.value.__notes__
    assert "preds=float32 [2, 1] and target=float32 [2, 1]" in note
    assert "`preprocess_logits_for_metrics`" in note


@pytest.mark.parametrize("metrics", [{}, {"a": lambda prediction: {}}])
def test_dict_of_other_values_is_rejected(metrics, tmp_path):
    with pytest.raises(InputError, match=r"is a dict of (nothing|function); give a dict of `torchmetrics.Metric`"):
        toy_trainer(tmp_path, parts={"compute_metrics": metrics})


def test_include_for_metrics_with_torchmetrics_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"`include_for_metrics=\['loss'\]` gives more than logits and labels"):
        toy_trainer(tmp_path, parts={"compute_metrics": MeanSquaredError()}, include_for_metrics=["loss"])


def test_batch_metric_needs_compute_result(tmp_path):
    with pytest.raises(InputError, match="`compute_result` boolean argument"):
        toy_trainer(tmp_path, parts={"compute_metrics": lambda prediction: {}}, batch_eval_metrics=True)
