import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchmetrics import SumMetric
from transformers import DataCollatorWithPadding, PrinterCallback
from transformers.trainer_utils import EvalPrediction, PredictionOutput

from portico import InputError, MRCTrainer, TrainingArguments
from portico.mrc import Featurizer, SpanPostProcessing, SquadMetrics, SquadV2, postprocess_qa_predictions
from portico.mrc.corpus import generate
from portico.mrc.models.small_bert import new_reader


@pytest.fixture(scope="module")
def parts():
    train, validation = generate(num_train=48, num_validation=40, seed=1)
    torch.manual_seed(0)
    texts = [text for example in train for text in (example["context"], example["question"])]
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    reader = new_reader(texts, vocab_size=400, max_length=96, model=shape)
    # Small windows, so that some passages have several.
    featurizer = Featurizer(reader.tokenizer, max_seq_length=96, doc_stride=24)
    return SimpleNamespace(
        model=reader.model,
        tokenizer=reader.tokenizer,
        train=featurizer.train_features(train),
        features=featurizer.eval_features(validation),
        examples=validation,
    )


def make_trainer(parts, tmp_path, trainer_class=MRCTrainer, **options):
    arguments = {"per_device_eval_batch_size": 7, "per_device_train_batch_size": 16, "use_cpu": True}
    arguments |= options.pop("arguments", {})
    settings = {
        "processing_class": parts.tokenizer,
        "data_collator": DataCollatorWithPadding(parts.tokenizer),
        "train_dataset": parts.train,
        "eval_dataset": parts.features,
        "eval_examples": parts.examples,
        "post_process_function": SpanPostProcessing(version_2_with_negative=True),
        "compute_metrics": SquadMetrics(version_2_with_negative=True),
    }
    args = TrainingArguments(str(tmp_path), disable_tqdm=True, report_to="none", **arguments)
    trainer = trainer_class(parts.model, args, **{**settings, **options})
    trainer.remove_callback(PrinterCallback)
    return trainer


def test_evaluation_returns_scores_and_speed_and_writes_the_answers(parts, tmp_path):
    trainer = make_trainer(parts, tmp_path)
    metrics = trainer.evaluate()
    assert {"eval_f1", "eval_exact", "eval_NoAns_exact", "eval_runtime", "eval_samples_per_second"} <= set(metrics)
    assert metrics["eval_total"] == 40
    predictions = json.loads((tmp_path / "eval_predictions.json").read_text())
    assert list(predictions) == [example["id"] for example in parts.examples]
    assert (tmp_path / "eval_nbest_predictions.json").is_file()
    assert (tmp_path / "eval_null_odds.json").is_file()
    assert trainer.state.log_history[-1]["eval_f1"] == metrics["eval_f1"]


def test_labelled_features_give_a_loss(parts, tmp_path):
    featurizer = Featurizer(parts.tokenizer, max_seq_length=96, doc_stride=24)
    labelled = featurizer.eval_features(parts.examples, labels=True)
    metrics = make_trainer(parts, tmp_path, eval_dataset=labelled).evaluate()
    assert metrics["eval_loss"] > 0
    assert metrics["eval_f1"] == make_trainer(parts, tmp_path).evaluate()["eval_f1"]


def test_streamed_answers_are_those_of_the_whole_arrays(parts, tmp_path):
    streamed = make_trainer(parts, tmp_path / "streamed")
    streamed.evaluate()
    logits = []

    def collected(examples, features, predictions):
        logits.append(predictions)
        return SpanPostProcessing(version_2_with_negative=True)(examples, features, predictions)

    whole = make_trainer(parts, tmp_path / "whole", post_process_function=collected)
    assert whole.evaluate()["eval_f1"] == streamed.state.log_history[-1]["eval_f1"]
    assert whole.answered.answers.predictions == streamed.answered.answers.predictions
    assert len(logits[0][0]) == len(parts.features) > len(parts.examples)
    expected = postprocess_qa_predictions(parts.examples, parts.features, logits[0], version_2_with_negative=True)
    assert streamed.answered.answers.predictions == expected


def test_two_processes_answer_as_one(parts, tmp_path):
    one = make_trainer(parts, tmp_path / "one")
    two = make_trainer(parts, tmp_path / "two", arguments={"strategy": "ddp_fork", "devices": 2})
    metrics = [trainer.evaluate() for trainer in (one, two)]
    for name in ("eval_f1", "eval_exact", "eval_total", "eval_best_f1"):
        assert metrics[0][name] == metrics[1][name]
    assert two.answered.answers.predictions == one.answered.answers.predictions
    files = [(tmp_path / name / "eval_predictions.json").read_text() for name in ("one", "two")]
    assert files[0] == files[1]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_metric_of_torchmetrics_scores_the_answers(parts, tmp_path, devices):
    arguments = {"strategy": "ddp_fork", "devices": 2} if devices == 2 else {}
    options = {"compute_metrics": SquadV2(average_precision=True), "arguments": arguments}
    metrics = make_trainer(parts, tmp_path / "metric", **options).evaluate()
    expected = make_trainer(parts, tmp_path / "function").evaluate()
    assert metrics["eval_pr_f1_ap"] >= 0
    for name in ("eval_f1", "eval_exact", "eval_total", "eval_best_f1", "eval_NoAns_exact"):
        assert metrics[name] == expected[name]


def test_metrics_take_what_primeqa_has_processed_for_them(parts, tmp_path):
    def answer(examples, features, predictions):
        processed = [{"id": example["id"], "prediction_text": ""} for example in examples]
        references = [{"id": example["id"], "answers": example["answers"]} for example in examples]
        candidates = {example["id"]: [] for example in examples}
        return SimpleNamespace(predictions=candidates, processed_predictions=processed, label_ids=references)

    metrics = make_trainer(parts, tmp_path, post_process_function=answer, compute_metrics=SquadV2()).evaluate()
    assert (metrics["eval_NoAns_exact"], metrics["eval_total"]) == (100.0, 40)


def test_streaming_keeps_no_logits(parts, tmp_path):
    class Recording(MRCTrainer):
        def evaluation_loop(self, *args, **kwargs):
            self.output = super().evaluation_loop(*args, **kwargs)
            return self.output

    trainer = make_trainer(parts, tmp_path, trainer_class=Recording)
    trainer.evaluate()
    assert trainer.output.predictions is None
    assert trainer.output.num_samples == len(parts.features)


def test_training_evaluates_answers_and_keeps_the_best(parts, tmp_path):
    arguments = {
        "num_train_epochs": 2,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "f1",
    }
    trainer = make_trainer(parts, tmp_path, arguments=arguments)
    trainer.train()
    epoch = -(-len(parts.train) // 16)
    assert [entry["step"] for entry in trainer.state.log_history if "eval_f1" in entry] == [epoch, 2 * epoch]
    assert trainer.state.best_model_checkpoint is not None


def test_post_processing_in_the_words_of_primeqa(parts, tmp_path):
    def process(examples, features, predictions):
        answered = SpanPostProcessing(version_2_with_negative=True)(examples, features, predictions)
        return SimpleNamespace(
            predictions={"raw": 1}, label_ids=answered.label_ids, processed_predictions=answered.predictions
        )

    def scores(answered):
        return SquadMetrics(True)(EvalPrediction(answered.processed_predictions, answered.label_ids))

    trainer = make_trainer(parts, tmp_path, post_process_function=process, compute_metrics=scores)
    assert "eval_f1" in trainer.evaluate()
    files = {file.name for file in tmp_path.glob("eval_*")}
    assert files == {"eval_predictions.json", "eval_predictions_processed.json", "eval_references.json"}
    assert json.loads((tmp_path / "eval_predictions.json").read_text()) == {"raw": 1}
    assert trainer.predict().predictions == {"raw": 1}


def test_prediction_in_the_words_of_transformers(parts, tmp_path):
    stages = []

    def process(examples, features, predictions, stage="eval"):
        stages.append(stage)
        return SpanPostProcessing(version_2_with_negative=True)(examples, features, predictions)

    trainer = make_trainer(parts, tmp_path, post_process_function=process)
    output = trainer.predict(parts.features, parts.examples)
    assert isinstance(output, PredictionOutput)
    assert output.predictions[0].keys() == {"id", "prediction_text", "no_answer_probability"}
    assert output.metrics["test_total"] == 40
    assert stages == ["predict"]
    assert (tmp_path / "predict_predictions.json").is_file()


def test_prediction_without_examples_gives_logits(parts, tmp_path):
    output = make_trainer(parts, tmp_path).predict(parts.features)
    assert output.predictions[0].shape[0] == len(parts.features)


def test_prediction_without_post_processing_is_empty(parts, tmp_path):
    assert make_trainer(parts, tmp_path, post_process_function=None).predict() == {}


def test_evaluation_on_other_data_has_its_own_prefix(parts, tmp_path):
    trainer = make_trainer(parts, tmp_path)
    few = parts.examples[:5]
    features = Featurizer(parts.tokenizer, max_seq_length=96, doc_stride=24).eval_features(few)
    metrics = trainer.evaluate(features, few, metric_key_prefix="dev")
    assert metrics["dev_total"] == 5
    assert (tmp_path / "dev_predictions.json").is_file()


def test_columns_that_a_task_head_takes_are_kept(parts, tmp_path):
    trainer = make_trainer(parts, tmp_path)
    trainer.model.task_head = torch.nn.Bilinear(1, 1, 1)
    try:
        trainer._set_signature_columns_if_needed()
        assert {"input1", "input2", "input_ids"} <= set(trainer._signature_columns)
    finally:
        del trainer.model.task_head


def test_examples_without_features_are_refused(parts, tmp_path):
    trainer = make_trainer(parts, tmp_path, eval_dataset=None)
    with pytest.raises(InputError, match="examples to answer but no features"):
        trainer.evaluate()


def test_tokenizer_is_an_older_spelling(parts, tmp_path):
    with pytest.warns(FutureWarning, match="`tokenizer` is called `processing_class`"):
        trainer = make_trainer(parts, tmp_path, processing_class=None, tokenizer=parts.tokenizer)
    assert trainer.processing_class is parts.tokenizer


def test_probability_of_no_answer_is_bounded(parts, tmp_path):
    trainer = make_trainer(parts, tmp_path)
    trainer.evaluate()
    probabilities = np.array([record["no_answer_probability"] for record in trainer.answered.predictions])
    odds = np.array(list(trainer.answered.answers.null_odds.values()))
    assert ((probabilities > 0.5) == (odds > 0)).all()


class Answered(SumMetric):
    """Counts answers, and the questions they are compared with."""

    def update(self, preds, target):
        super().update(torch.tensor([len(preds), len(target)]))


@pytest.mark.parametrize("streams", [True, False])
def test_metrics_of_torchmetrics_see_the_answers(streams, parts, tmp_path):
    def collected(examples, features, predictions):
        return SpanPostProcessing(version_2_with_negative=True)(examples, features, predictions)

    options = {} if streams else {"post_process_function": collected}
    trainer = make_trainer(parts, tmp_path, compute_metrics={"answered": Answered()}, **options)
    assert trainer.evaluate()["eval_answered"] == 80
