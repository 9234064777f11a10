"""Metrics of torchmetrics, and metric functions that are called per batch."""

import json
import re

import pytest
import torch
from torch.utils.data import Dataset
from torchmetrics import ConfusionMatrix, MeanMetric, MeanSquaredError, MetricCollection, SumMetric
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassF1Score,
    MultilabelAccuracy,
    MultilabelAUROC,
)
from torchmetrics.retrieval import RetrievalMAP
from torchmetrics.text import BLEUScore, Perplexity
from torchmetrics.wrappers import ClasswiseWrapper
from transformers import BertForQuestionAnswering, BertForSequenceClassification, TrainerCallback

from models import (
    Line,
    Points,
    Sequences,
    pad_everything,
    tiny_bert_config,
    tiny_gpt2,
    tiny_t5,
    tiny_tagger,
    tiny_tokenizer,
    toy_arguments,
    toy_trainer,
)
from portico import Seq2SeqTrainer, Seq2SeqTrainingArguments
from portico.compat.transformers import logger
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
        toy_trainer(tmp_path, parts={"compute_metrics": metrics}, eval_strategy="epoch")


def test_include_for_metrics_with_torchmetrics_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"`include_for_metrics=\['loss'\]` gives more than logits and labels"):
        toy_trainer(tmp_path, parts={"compute_metrics": MeanSquaredError()}, include_for_metrics=["loss"])


def test_batch_metric_needs_compute_result(tmp_path):
    with pytest.raises(InputError, match="`compute_result` boolean argument"):
        toy_trainer(tmp_path, parts={"compute_metrics": lambda prediction: {}}, batch_eval_metrics=True)


# Heads of transformers -----------------------------------------------------------------------------------------------


def tagger(tmp_path, metrics, size=9, **parts):
    data = Sequences(size, ragged=True, classes=3)
    parts = {"model": tiny_tagger(), "compute_metrics": metrics, "data_collator": pad_everything, **parts}
    return toy_trainer(tmp_path, parts={"train_dataset": data, "eval_dataset": data, **parts}, eval_strategy="epoch")


def padded_scores(trainer):
    """Return all logits ``[N, L, C]`` and labels ``[N, L]`` of the evaluation set, padded with -100."""
    trainer.compute_metrics = None
    output = trainer.predict(trainer.eval_dataset)
    return torch.from_numpy(output.predictions), torch.from_numpy(output.label_ids)


def test_classes_of_tokens_are_moved_and_padding_is_ignored(tmp_path):
    metrics = {
        "accuracy": MulticlassAccuracy(3, average="micro", ignore_index=-100),
        "f1": ClasswiseWrapper(MulticlassF1Score(3, average=None, ignore_index=-100), prefix="f1_"),
        "perplexity": Perplexity(ignore_index=-100),
        "own": SumOfTokens(),
    }
    trainer = tagger(tmp_path, metrics)
    trainer.train()
    result = trainer.evaluate()
    logits, labels = padded_scores(trainer)
    kept = labels != -100
    right = (logits.argmax(-1) == labels)[kept]
    assert result["eval_accuracy"] == pytest.approx(right.float().mean().item())
    assert {"eval_f1_0", "eval_f1_1", "eval_f1_2"} <= result.keys()
    loss = torch.nn.functional.cross_entropy(logits[kept], labels[kept])
    assert result["eval_perplexity"] == pytest.approx(loss.exp().item(), rel=1e-5)
    assert result["eval_own"] > kept.sum(), "it sees padding too"


class SumOfTokens(SumMetric):
    """A metric of the user's own, which gets logits ``[N, L, C]`` as the model returns them."""

    def update(self, preds, target):
        assert preds.shape[:-1] == target.shape
        super().update(torch.tensor(float(target.numel())))


def test_batch_as_long_as_there_are_classes_is_moved(tmp_path):
    trainer = tagger(tmp_path, MulticlassAccuracy(3, average="micro", ignore_index=-100))
    data = Sequences(40, ragged=True, classes=3)
    short = [data[index] for index in range(40) if len(data[index]["input_ids"]) == 3]
    trainer.eval_dataset = short
    accuracy = trainer.evaluate()["eval_MulticlassAccuracy"]
    logits, labels = padded_scores(trainer)
    assert len(short) > 2
    assert accuracy == pytest.approx((logits.argmax(-1) == labels)[labels != -100].float().mean().item())


def test_causal_scores_are_compared_with_next_token(tmp_path):
    metrics = {
        "accuracy": MulticlassAccuracy(50, average="micro", ignore_index=-100),
        "perplexity": Perplexity(ignore_index=-100),
    }
    trainer = tagger(tmp_path, metrics, model=tiny_gpt2())
    result = trainer.evaluate()
    logits, labels = padded_scores(trainer)
    logits, labels = logits[:, :-1], labels[:, 1:]
    kept = labels != -100
    assert result["eval_accuracy"] == pytest.approx((logits.argmax(-1) == labels)[kept].float().mean().item())
    loss = torch.nn.functional.cross_entropy(logits[kept], labels[kept])
    assert result["eval_perplexity"] == pytest.approx(loss.exp().item(), rel=1e-5)


def test_first_of_several_outputs_is_scored(tmp_path):
    trainer = tagger(tmp_path, MulticlassAccuracy(50, average="micro", ignore_index=-100), model=tiny_t5())
    accuracy = trainer.evaluate()["eval_MulticlassAccuracy"]
    trainer.compute_metrics = None
    output = trainer.predict(trainer.eval_dataset)
    assert isinstance(output.predictions, tuple)
    logits, labels = torch.from_numpy(output.predictions[0]), torch.from_numpy(output.label_ids)
    assert accuracy == pytest.approx((logits.argmax(-1) == labels)[labels != -100].float().mean().item())


class Scored(Dataset):
    """Random tokens with the given labels."""

    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": torch.arange(5) + index, "labels": self.labels[index]}


def sequence_model(**settings):
    config = tiny_bert_config()
    config.update(settings)
    return BertForSequenceClassification(config)


def test_regression_head_fits_metrics_of_numbers(tmp_path):
    parts = {"model": sequence_model(num_labels=1), "eval_dataset": Scored(torch.arange(5.0))}
    trainer = toy_trainer(tmp_path, parts={**parts, "compute_metrics": {"mse": MeanSquaredError()}})
    result = trainer.evaluate()
    assert result["eval_mse"] == pytest.approx(result["eval_loss"], rel=1e-5)


def test_multilabel_head_fits_multilabel_metrics(tmp_path):
    labels = torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 1, 0]])
    parts = {"model": sequence_model(problem_type="multi_label_classification"), "eval_dataset": Scored(labels)}
    metrics = {"accuracy": MultilabelAccuracy(3, average="micro"), "auroc": MultilabelAUROC(3)}
    trainer = toy_trainer(tmp_path, parts={**parts, "compute_metrics": metrics})
    result = trainer.evaluate()
    logits, _ = padded_scores(trainer)
    assert result["eval_accuracy"] == pytest.approx(((logits > 0) == labels).float().mean().item())
    assert 0 <= result["eval_auroc"] <= 1


TOKENS = {"ignore_index": -100}


@pytest.mark.parametrize(
    ("model", "metric", "match"),
    [
        (tiny_tagger, RetrievalMAP(), r"RetrievalMAP, whose `update\(preds.*indexes.* cannot be called with logits"),
        (tiny_tagger, SumMetric(), r"SumMetric, whose `update\(value.* cannot be called with logits"),
        (tiny_t5, BLEUScore(), "BLEUScore, which compares strings .*give a function of an `EvalPrediction` that"),
        (
            lambda: BertForQuestionAnswering(tiny_bert_config()),
            MulticlassAccuracy(3),
            r"the model has several \(start_positions, end_positions\)",
        ),
    ],
)
def test_metric_that_does_not_fit_is_refused_before_training(model, metric, match, tmp_path):
    for metrics in (metric, {"a": metric}, MetricCollection({"a": metric, "b": MeanSquaredErrorOfMine()})):
        with pytest.raises(InputError, match=match):
            tagger(tmp_path, metrics, model=model())


@pytest.mark.parametrize(
    ("model", "metric", "match"),
    [
        (tiny_tagger, MulticlassAccuracy(3), r"with `ignore_index=None`, but .* padded with -100; give Multiclass"),
        (tiny_tagger, MulticlassAccuracy(5, **TOKENS), r"`num_classes=5`, but BertFor.* has 3 scores"),
        (tiny_tagger, BinaryAccuracy(**TOKENS), "takes one score for each label, but .* has 3; give a multiclass"),
        (tiny_gpt2, MulticlassAccuracy(3, **TOKENS), "set `num_classes=50`"),
        (
            lambda: sequence_model(problem_type="multi_label_classification"),
            MulticlassAccuracy(3),
            "takes one label for each example.*multilabel metric with `num_labels=3`",
        ),
    ],
)
def test_metric_that_seems_not_to_fit_is_warned_of(model, metric, match, tmp_path, caplog):
    logger.warning_once.cache_clear()
    tagger(tmp_path, metric, model=model())
    assert re.search(match, caplog.text)


def test_metric_of_a_replaced_head(tmp_path):
    model = tiny_tagger()  # whose configuration still says 3 labels
    model.classifier = torch.nn.Linear(model.config.hidden_size, 5)
    model.num_labels = 5
    metrics = tagger(tmp_path, MulticlassAccuracy(5, average="micro", **TOKENS), model=model).evaluate()
    assert 0 <= metrics["eval_MulticlassAccuracy"] <= 1


class MeanSquaredErrorOfMine(SumMetric):
    def update(self, preds, target):
        pass


def test_generated_tokens_are_no_scores(tmp_path):
    args = toy_arguments(tmp_path, Seq2SeqTrainingArguments, predict_with_generate=True)
    parts = {"model": tiny_t5(), "processing_class": tiny_tokenizer(), "train_dataset": Sequences()}
    with pytest.raises(InputError, match="`predict_with_generate=True` gives it generated tokens"):
        Seq2SeqTrainer(args=args, compute_metrics=MulticlassAccuracy(50, **TOKENS), **parts)


class ScoresOfClasses(Line):
    def forward(self, x, labels=None):
        logits = torch.cat([super().forward(x)["logits"]] * 2, dim=1)
        return {"loss": logits.sum(), "logits": logits}


@pytest.mark.parametrize("metric", [BinaryAUROC(), BinaryAccuracy(), MeanSquaredError()])
def test_score_for_each_class_is_refused_in_the_first_batch(metric, tmp_path):
    rows = [{"x": point["x"], "labels": index % 2} for index, point in enumerate(Points(6))]
    parts = {"model": ScoresOfClasses(), "eval_dataset": rows, "compute_metrics": metric}
    match = f"holds {type(metric).__name__}, which takes one score .* returns 2; .*`logits.softmax"
    with pytest.raises(InputError, match=match):
        toy_trainer(tmp_path, parts=parts).evaluate()
    parts["preprocess_logits_for_metrics"] = lambda logits, labels: logits.softmax(-1)[:, 1]
    assert type(metric).__name__ in "".join(toy_trainer(tmp_path, parts=parts).evaluate())
