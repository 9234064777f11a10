import json
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import SumMetric
from transformers.trainer_utils import EvalPrediction, PredictionOutput

from portico import InputError, MRCTrainer
from portico.mrc import SpanPostProcessing, SquadMetrics, SquadV2, postprocess_qa_predictions
from portico.mrc.postprocess import span_postprocessing
from portico.mrc.primeqa import EvalPredictionWithProcessing
from unit.mrc.small_readers import (
    EvaluationRecorder,
    featurized,
    featurizer,
    make_trainer,
    reader,
    source,
)

TWO_PROCESSES = {"strategy": "ddp_fork", "devices": 2}


@pytest.fixture(scope="module")
def data():
    sets = source(num_validation=40)
    made = reader(sets.train)
    features = featurized(sets, made.tokenizer)
    return SimpleNamespace(
        sets=sets, examples=sets.validation, reader=made, features=features.validation, train=features.train
    )


@pytest.fixture
def trainer_of(data, tmp_path):
    def make(trainer_class=MRCTrainer, *, made=data.reader, folder=tmp_path, **options):
        parts = {"train_dataset": data.train, "eval_dataset": data.features, "eval_examples": data.examples}
        return make_trainer(trainer_class, made, folder, **{**parts, **options})

    return make


def whole_process(examples, features, predictions):
    return SpanPostProcessing(version_2_with_negative=True)(examples, features, predictions)


def primeqa_process(examples, features, predictions):
    answered = whole_process(examples, features, predictions)
    return EvalPredictionWithProcessing({"raw": len(predictions)}, answered.label_ids, answered.predictions)


def hf_process(examples, features, predictions, stage="eval"):
    answered = whole_process(examples, features, predictions)
    return EvalPrediction(predictions=[stage, *answered.predictions], label_ids=answered.label_ids)


def scores(answered):
    return SquadMetrics(True)(EvalPrediction(answered.processed_predictions, answered.label_ids))


def test_evaluation_returns_scores_and_speed_and_writes_the_answers(trainer_of, data, tmp_path):
    trainer = trainer_of()
    metrics = trainer.evaluate()
    assert {"eval_f1", "eval_exact", "eval_NoAns_exact", "eval_runtime", "eval_samples_per_second"} <= set(metrics)
    assert metrics["eval_total"] == 40
    predictions = json.loads((tmp_path / "eval_predictions.json").read_text())
    assert list(predictions) == [example["id"] for example in data.examples]
    assert (tmp_path / "eval_nbest_predictions.json").is_file()
    assert (tmp_path / "eval_null_odds.json").is_file()
    assert trainer.state.log_history[-1]["eval_f1"] == metrics["eval_f1"]


@pytest.mark.parametrize("name", ["limit_val_batches", "limit_test_batches", "fast_dev_run"])
def test_answers_of_limited_batches_are_refused(trainer_of, name):
    with pytest.raises(InputError, match="an answer needs all features of its question; give fewer `eval_examples`"):
        trainer_of(lightning_kwargs={name: 1})
    assert trainer_of(lightning_kwargs={"limit_train_batches": 1}).evaluate()["eval_total"] == 40


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_plain_lightning_trainer_validates_the_answers(trainer_of, tmp_path):
    expected = trainer_of(folder=tmp_path / "one").evaluate()
    trainer = trainer_of(folder=tmp_path / "two")
    plain = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    (metrics,) = plain.validate(trainer.module, trainer.datamodule, verbose=False)
    for name in ("eval_f1", "eval_exact", "eval_total", "eval_loss"):
        assert metrics[name] == expected[name]
    files = [(tmp_path / name / "eval_predictions.json").read_text() for name in ("one", "two")]
    assert files[0] == files[1]


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings(r"ignore:Found \d+ module\(s\) in eval mode")
def test_a_plain_fit_checks_and_evaluates_the_answers(trainer_of):
    trainer = trainer_of(arguments={"per_device_train_batch_size": 64})
    options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    pl.Trainer(accelerator="cpu", max_steps=1, val_check_interval=1, **options).fit(trainer.module, trainer.datamodule)
    assert [entry["eval_total"] for entry in trainer.state.log_history if "eval_total" in entry] == [40]


def test_labelled_features_have_a_loss(trainer_of, data):
    unlabelled = featurizer(data.reader.tokenizer).eval_features(data.examples)
    metrics = trainer_of(eval_dataset=unlabelled).evaluate()
    assert "eval_loss" not in metrics
    labelled = trainer_of().evaluate()
    assert labelled["eval_loss"] > 0
    assert labelled["eval_f1"] == metrics["eval_f1"]


def test_streamed_answers_equal_those_from_whole_arrays(trainer_of, data, tmp_path):
    streamed = trainer_of(folder=tmp_path / "streamed")
    streamed.evaluate()
    logits = []

    def collected(examples, features, predictions):
        logits.append(predictions)
        return whole_process(examples, features, predictions)

    whole = trainer_of(folder=tmp_path / "whole", post_process_function=collected)
    assert whole.evaluate()["eval_f1"] == streamed.state.log_history[-1]["eval_f1"]
    assert whole.answered.answers.predictions == streamed.answered.answers.predictions
    assert len(logits[0][0]) == len(data.features) > len(data.examples)
    expected = postprocess_qa_predictions(data.examples, data.features, logits[0], version_2_with_negative=True)
    assert streamed.answered.answers.predictions == expected


def test_two_processes_return_the_same_answers(trainer_of, tmp_path):
    one = trainer_of(folder=tmp_path / "one")
    two = trainer_of(folder=tmp_path / "two", arguments=TWO_PROCESSES)
    metrics = [trainer.evaluate() for trainer in (one, two)]
    for name in ("eval_f1", "eval_exact", "eval_total", "eval_best_f1"):
        assert metrics[0][name] == metrics[1][name]
    assert two.answered.answers.predictions == one.answered.answers.predictions
    files = [(tmp_path / name / "eval_predictions.json").read_text() for name in ("one", "two")]
    assert files[0] == files[1]


@pytest.mark.parametrize("arguments", [{}, TWO_PROCESSES], ids=["one_process", "two_processes"])
def test_a_torchmetrics_metric_scores_the_answers(trainer_of, tmp_path, arguments):
    metric = SquadV2(average_precision=True)
    metrics = trainer_of(folder=tmp_path / "metric", compute_metrics=metric, arguments=arguments).evaluate()
    expected = trainer_of(folder=tmp_path / "function").evaluate()
    assert metrics["eval_pr_f1_ap"] >= 0
    for name in ("eval_f1", "eval_exact", "eval_total", "eval_best_f1", "eval_NoAns_exact"):
        assert metrics[name] == expected[name]


class AnswerCount(SumMetric):
    """Counts answers, and the questions they are compared with."""

    def update(self, preds, target):
        super().update(torch.tensor([len(preds), len(target)]))


@pytest.mark.parametrize("streams", [True, False])
def test_torchmetrics_metrics_get_all_answers(streams, trainer_of, monkeypatch):
    monkeypatch.setattr(span_postprocessing, "_RECORDS_AT_ONCE", 16)
    options = {} if streams else {"post_process_function": whole_process}
    trainer = trainer_of(compute_metrics={"answered": AnswerCount(), "scores": SquadV2()}, **options)
    metrics = trainer.evaluate()
    assert metrics["eval_answered"] == 80
    at_once = trainer_of(**options).evaluate()
    scores = {key for key in at_once if "exact" in key or "f1" in key}
    assert len(scores) == 10
    assert {key: metrics[key] for key in scores} == {key: at_once[key] for key in scores}


def test_metrics_score_the_processed_predictions_of_primeqa(trainer_of):
    def answer(examples, features, predictions):
        processed = [{"id": example["id"], "prediction_text": ""} for example in examples]
        references = [{"id": example["id"], "answers": example["answers"]} for example in examples]
        candidates = {example["id"]: [] for example in examples}
        return SimpleNamespace(predictions=candidates, processed_predictions=processed, label_ids=references)

    metrics = trainer_of(post_process_function=answer, compute_metrics=SquadV2()).evaluate()
    assert (metrics["eval_NoAns_exact"], metrics["eval_total"]) == (100.0, 40)


class OutputRecorder(MRCTrainer):
    def evaluation_loop(self, *args, **kwargs):
        self.output = super().evaluation_loop(*args, **kwargs)
        return self.output


def test_streaming_keeps_no_logits(trainer_of, data):
    trainer = trainer_of(OutputRecorder)
    trainer.evaluate()
    assert trainer.output.predictions is None
    assert trainer.output.num_samples == len(data.features)


def test_training_evaluates_answers_and_keeps_the_best(trainer_of, data):
    arguments = {
        "num_train_epochs": 2,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "f1",
    }
    trainer = trainer_of(made=reader(data.sets.train), arguments=arguments)
    trainer.train()
    epoch = -(-len(data.train) // 8)
    assert [entry["step"] for entry in trainer.state.log_history if "eval_f1" in entry] == [epoch, 2 * epoch]
    assert trainer.state.best_model_checkpoint is not None


def test_primeqa_post_processing_writes_primeqas_files(trainer_of, tmp_path):
    trainer = trainer_of(post_process_function=primeqa_process, compute_metrics=scores)
    assert "eval_f1" in trainer.evaluate()
    files = {file.name for file in tmp_path.glob("eval_*")}
    assert files == {"eval_predictions.json", "eval_predictions_processed.json", "eval_references.json"}
    assert json.loads((tmp_path / "eval_predictions.json").read_text()) == {"raw": 2}
    assert trainer.predict().predictions == {"raw": 2}


@pytest.mark.parametrize("by_name", [True, False])
def test_a_primeqa_prediction_returns_the_result_of_its_post_processing(trainer_of, data, by_name):
    trainer = trainer_of(post_process_function=primeqa_process, compute_metrics=scores)
    given = {"eval_dataset": data.features, "eval_examples": data.examples}
    predicted = trainer.predict(**given) if by_name else trainer.predict(*given.values())
    assert isinstance(predicted, EvalPredictionWithProcessing)
    assert predicted.predictions == {"raw": 2}
    assert trainer.predict().processed_predictions == predicted.processed_predictions


def test_a_primeqa_prediction_without_post_processing_is_empty(trainer_of, data):
    trainer = trainer_of(post_process_function=None, compute_metrics=None)
    assert trainer.predict() == {}
    assert trainer.predict(eval_dataset=data.features, eval_examples=data.examples) == {}


@pytest.mark.parametrize("by_name", [True, False])
def test_a_transformers_prediction_returns_an_output_with_metrics(trainer_of, data, tmp_path, by_name):
    trainer = trainer_of(post_process_function=hf_process, compute_metrics=lambda answered: {"count": 3})
    given = {"predict_dataset": data.features, "predict_examples": data.examples}
    predicted = trainer.predict(**given) if by_name else trainer.predict(*given.values())
    assert isinstance(predicted, PredictionOutput)
    stage, first = predicted.predictions[:2]
    assert stage == "predict"
    assert first.keys() == {"id", "prediction_text", "no_answer_probability"}
    assert {"test_count", "test_loss", "test_runtime"} <= set(predicted.metrics)


def test_a_streamed_prediction_writes_its_files(trainer_of, data, tmp_path):
    output = trainer_of().predict(data.features, data.examples)
    assert isinstance(output, PredictionOutput)
    assert output.metrics["test_total"] == 40
    assert (tmp_path / "predict_predictions.json").is_file()


def test_a_prediction_without_examples_returns_logits(trainer_of, data):
    trainer = trainer_of(post_process_function=primeqa_process, compute_metrics=scores)
    by_place, by_name = trainer.predict(data.features), trainer.predict(test_dataset=data.features)
    for predicted in (by_place, by_name):
        assert isinstance(predicted, PredictionOutput)
        assert predicted.predictions[0].shape[0] == len(data.features)
    assert trainer.compute_metrics is scores
    np.testing.assert_array_equal(by_place.predictions[0], by_name.predictions[0])


@pytest.mark.parametrize("value", [3, 2.5, "text", ["text"], {"a": 1}], ids=str)
@pytest.mark.parametrize("name", ["eval_examples", "post_process_function", "legacy_metrics"])
def test_a_part_of_every_wrong_kind_is_rejected_by_name(name, value, trainer_of):
    with pytest.raises(InputError, match=rf"`{name}[`=\[]"):
        trainer_of(**{name: value})


def test_legacy_metrics_leave_out_loss_and_speed(trainer_of):
    recorder = EvaluationRecorder()
    options = {"post_process_function": primeqa_process, "callbacks": [recorder]}
    now = trainer_of(compute_metrics=scores, **options).evaluate()
    assert {"eval_loss", "eval_runtime", "eval_f1"} <= set(now)
    legacy = trainer_of(compute_metrics=scores, legacy_metrics=True, **options).evaluate()
    assert legacy == {key: value for key, value in now.items() if key in legacy}
    assert "eval_f1" in legacy
    assert not {"eval_loss", "eval_runtime"} & set(legacy)
    assert trainer_of(compute_metrics=None, legacy_metrics=True, **options).evaluate() == {}
    assert recorder.metrics[-1] == {}


class Bare(nn.Module):
    """A model of one's own, of which nothing tells the columns of the labels."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, input_ids, attention_mask, start_positions=None, end_positions=None):
        start, end = self.head(input_ids[..., None] / 1000).unbind(-1)
        loss = nn.functional.cross_entropy(start, start_positions) + nn.functional.cross_entropy(end, end_positions)
        return {"loss": loss, "start_logits": start, "end_logits": end}


def test_a_loss_among_the_logits_is_explained(trainer_of, data):
    own = SimpleNamespace(model=Bare(), tokenizer=data.reader.tokenizer)
    with pytest.raises(InputError, match=r"Bare was .* returned a single number first, .* `label_names=\['start_pos"):
        trainer_of(made=own).evaluate()
    named = trainer_of(made=own, arguments={"label_names": ["start_positions", "end_positions"]})
    assert named.evaluate()["eval_loss"] > 0


def test_label_names_and_evaluation_loop_as_primeqa_uses_them(trainer_of):
    arguments = {"label_names": ["start_positions", "end_positions"]}
    trainer = trainer_of(arguments=arguments, compute_metrics=None)
    assert trainer.label_names == ["start_positions", "end_positions"]
    output = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation", prediction_loss_only=False)
    assert len(output.predictions) == 2


def train_and_record_shapes(trainer_of, data, head, post_process):
    """Train a reader with a head, and return the trainer and the shapes that its post-processing gets."""
    shapes = []

    def process(examples, features, predictions):
        shapes.append([array.shape for array in predictions])
        return post_process(examples, features, predictions)

    trainer = trainer_of(
        made=reader(data.sets.train, head),
        head=head,
        arguments={"max_steps": 2},
        post_process_function=process,
        compute_metrics=None,
    )
    assert trainer.train().training_loss > 0
    assert trainer.evaluate()["eval_loss"] > 0
    return trainer, shapes[0]


@pytest.mark.parametrize("head", ["extractive", "extractive_with_confidence"])
def test_models_with_an_extractive_head_are_trained_and_evaluated(trainer_of, data, head):
    def two_logits(examples, features, predictions):
        return primeqa_process(examples, features, predictions[:2])

    trainer, shapes = train_and_record_shapes(trainer_of, data, head, two_logits)
    assert trainer.label_names == ["start_positions", "end_positions"]
    rows = len(data.features)
    assert [shape[0] for shape in shapes] == [rows] * (3 if head == "extractive" else 6)
    assert shapes[2] == (rows, 5)


def test_beams_reach_the_post_processing(trainer_of, data):
    def nothing(examples, features, predictions):
        return EvalPredictionWithProcessing({}, [], [])

    _, shapes = train_and_record_shapes(trainer_of, data, "beam_search", nothing)
    rows = len(data.features)
    assert shapes == [(rows, 5), (rows, 5), (rows, 25), (rows, 25), (rows,)]


def test_columns_of_the_head_are_kept(trainer_of, data):
    trainer = trainer_of(made=reader(data.sets.train, "extractive"), head="extractive")
    trainer._set_signature_columns_if_needed()
    assert {"input_ids", "token_type_ids", "start_positions", "target_type"} <= set(trainer._signature_columns)
    assert not {"offset_mapping", "kwargs", "inputs"} & set(trainer._signature_columns)
    assert len(set(trainer._signature_columns)) == len(trainer._signature_columns)


def test_named_data_sets_are_evaluated_one_by_one(trainer_of, data, tmp_path):
    examples = {"first": data.examples[:8], "rest": data.examples[8:]}
    make = featurizer(data.reader.tokenizer)
    features = {name: make.eval_features(part, labels=True) for name, part in examples.items()}
    trainer = trainer_of(eval_dataset=features, eval_examples=examples)
    metrics = trainer.evaluate()
    for name, part in examples.items():
        assert metrics[f"eval_{name}_total"] == len(part)
        assert metrics[f"eval_{name}_f1"] == trainer.evaluate(features[name], part)["eval_f1"]
        written = json.loads((tmp_path / f"eval_{name}_predictions.json").read_text())
        assert list(written) == [example["id"] for example in part]
    with pytest.raises(InputError, match=r"datasets 'first', 'rest', and `eval_examples` is a list without"):
        trainer.evaluate(eval_examples=data.examples)
    with pytest.raises(InputError, match=r"`eval_examples` is a dict of 'first'; give a dict of the examples of each"):
        trainer.evaluate(eval_examples={"first": examples["first"]})


def test_metric_key_prefix_of_other_data(trainer_of, data, tmp_path):
    few = data.examples[:5]
    metrics = trainer_of().evaluate(featurizer(data.reader.tokenizer).eval_features(few), few, metric_key_prefix="dev")
    assert metrics["dev_total"] == 5
    assert (tmp_path / "dev_predictions.json").is_file()


def test_examples_must_belong_to_the_features(trainer_of, data):
    trainer = trainer_of()
    expected = trainer.evaluate()["eval_f1"]
    backwards = data.examples[::-1]
    assert trainer.evaluate(eval_examples=backwards)["eval_f1"] == expected
    assert [one["id"] for one in trainer.answered.predictions] == [one["id"] for one in backwards]
    with pytest.raises(InputError, match=r"has example_id .* which none of the 39 examples has"):
        trainer.evaluate(eval_examples=data.examples[:-1])
    with pytest.raises(InputError, match=r"made to train on; give features from `eval_features`"):
        trainer.evaluate(data.train, data.sets.train)


def test_examples_without_features_are_refused(trainer_of):
    with pytest.raises(InputError, match="examples to answer but no features"):
        trainer_of(eval_dataset=None).evaluate()


def test_prediction_loss_only_needs_no_answers(trainer_of):
    trainer = trainer_of(arguments={"prediction_loss_only": True})
    metrics = trainer.evaluate()
    assert "eval_loss" in metrics
    assert "eval_f1" not in metrics
    assert trainer.answered is None


def test_deprecated_tokenizer_argument(trainer_of, data):
    with pytest.warns(FutureWarning, match="`tokenizer` .*`processing_class`"):
        trainer = trainer_of(processing_class=None, tokenizer=data.reader.tokenizer)
    assert trainer.processing_class is data.reader.tokenizer


def test_the_probability_of_no_answer_follows_the_null_odds(trainer_of):
    trainer = trainer_of()
    trainer.evaluate()
    probabilities = np.array([record["no_answer_probability"] for record in trainer.answered.predictions])
    odds = np.array(list(trainer.answered.answers.null_odds.values()))
    assert ((probabilities > 0.5) == (odds > 0)).all()
