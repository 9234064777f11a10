"""The calls of PrimeQA's trainer and of the one of transformers' example, on one trainer."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import TrainerCallback
from transformers.trainer_utils import EvalPrediction, PredictionOutput

from portico import InputError, MRCTrainer
from portico.mrc import Featurizer, SpanPostProcessing, SquadMetrics
from portico.mrc.primeqa import EvalPredictionWithProcessing
from unit.mrc.small_readers import featurized, make_trainer, reader, source


@pytest.fixture(scope="module")
def data():
    examples = source()
    made = reader(examples)
    return SimpleNamespace(examples=examples, reader=made, features=featurized(examples, made.tokenizer))


def primeqa_process(examples, features, predictions):
    answered = SpanPostProcessing(version_2_with_negative=True)(examples, features, predictions)
    return EvalPredictionWithProcessing({"raw": len(predictions)}, answered.label_ids, answered.predictions)


def hf_process(examples, features, predictions, stage="eval"):
    answered = SpanPostProcessing(version_2_with_negative=True)(examples, features, predictions)
    return EvalPrediction(predictions=[stage, *answered.predictions], label_ids=answered.label_ids)


def scores(answered):
    return SquadMetrics(True)(EvalPrediction(answered.processed_predictions, answered.label_ids))


def trainer_of(data, tmp_path, **options):
    sets = {"eval_dataset": data.features.validation, "eval_examples": data.examples.validation}
    return make_trainer(MRCTrainer, data.reader, tmp_path, **{**sets, **options})


@pytest.mark.parametrize("named", [True, False])
def test_primeqas_prediction_returns_what_its_post_processing_returns(data, tmp_path, named):
    trainer = trainer_of(data, tmp_path, post_process_function=primeqa_process, compute_metrics=scores)
    given = {"eval_dataset": data.features.validation, "eval_examples": data.examples.validation}
    predicted = trainer.predict(**given) if named else trainer.predict(*given.values())
    assert isinstance(predicted, EvalPredictionWithProcessing)
    assert predicted.predictions == {"raw": 2}
    assert trainer.predict().processed_predictions == predicted.processed_predictions


def test_primeqas_prediction_without_post_processing_is_empty(data, tmp_path):
    trainer = trainer_of(data, tmp_path, post_process_function=None, compute_metrics=None)
    assert trainer.predict() == {}
    assert trainer.predict(eval_dataset=data.features.validation, eval_examples=data.examples.validation) == {}


@pytest.mark.parametrize("named", [True, False])
def test_the_prediction_of_transformers_returns_an_output_with_metrics(data, tmp_path, named):
    trainer = trainer_of(
        data, tmp_path, post_process_function=hf_process, compute_metrics=lambda answered: {"count": 3}
    )
    given = {"predict_dataset": data.features.validation, "predict_examples": data.examples.validation}
    predicted = trainer.predict(**given) if named else trainer.predict(*given.values())
    assert isinstance(predicted, PredictionOutput)
    assert predicted.predictions[0] == "predict"
    assert {"test_count", "test_loss", "test_runtime"} <= set(predicted.metrics)


def test_a_data_set_alone_gives_logits(data, tmp_path):
    trainer = trainer_of(data, tmp_path, post_process_function=primeqa_process, compute_metrics=scores)
    by_place, by_name = (
        trainer.predict(data.features.validation),
        trainer.predict(test_dataset=data.features.validation),
    )
    for predicted in (by_place, by_name):
        assert isinstance(predicted, PredictionOutput)
        assert predicted.predictions[0].shape[0] == len(data.features.validation)
    assert trainer.compute_metrics is scores
    np.testing.assert_array_equal(by_place.predictions[0], by_name.predictions[0])


class Heard(TrainerCallback):
    def __init__(self):
        self.metrics = []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.metrics.append(dict(metrics))


def test_evaluation_keeps_loss_and_speed_unless_the_legacy_is_asked_for(data, tmp_path):
    heard = Heard()
    options = {"post_process_function": primeqa_process, "callbacks": [heard]}
    now = trainer_of(data, tmp_path, compute_metrics=scores, **options).evaluate()
    assert {"eval_loss", "eval_runtime", "eval_f1"} <= set(now)
    legacy = trainer_of(data, tmp_path, compute_metrics=scores, legacy_metrics=True, **options).evaluate()
    assert legacy == {key: value for key, value in now.items() if key in legacy}
    assert "eval_f1" in legacy
    assert not {"eval_loss", "eval_runtime"} & set(legacy)
    assert trainer_of(data, tmp_path, compute_metrics=None, legacy_metrics=True, **options).evaluate() == {}
    assert heard.metrics[-1] == {}


def test_what_primeqa_reads_of_a_trainer_is_there(data, tmp_path):
    arguments = {"label_names": ["start_positions", "end_positions"]}
    trainer = trainer_of(data, tmp_path, arguments=arguments, compute_metrics=None)
    assert trainer.label_names == ["start_positions", "end_positions"]
    output = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation", prediction_loss_only=False)
    assert len(output.predictions) == 2


@pytest.mark.parametrize("head", ["extractive", "extractive_with_confidence"])
def test_readers_with_a_head_are_trained_and_evaluated(data, tmp_path, head):
    made = reader(data.examples, head)
    seen = []

    def process(examples, features, predictions):
        seen.append([array.shape for array in predictions])
        return primeqa_process(examples, features, predictions[:2])

    sets = {
        "train_dataset": data.features.train,
        "eval_dataset": data.features.validation,
        "eval_examples": data.examples.validation,
    }
    trainer = make_trainer(
        MRCTrainer,
        made,
        tmp_path,
        head=head,
        arguments={"max_steps": 2},
        post_process_function=process,
        compute_metrics=scores,
        **sets,
    )
    assert trainer.label_names == ["start_positions", "end_positions"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    rows = len(data.features.validation)
    assert [shape[0] for shape in seen[0]] == [rows] * (3 if head == "extractive" else 6)
    assert seen[0][2] == (rows, 5)


def test_columns_of_the_head_are_kept(data, tmp_path):
    made = reader(data.examples, "extractive")
    trainer = make_trainer(MRCTrainer, made, tmp_path, head="extractive")
    trainer._set_signature_columns_if_needed()
    assert {"input_ids", "token_type_ids", "start_positions", "target_type"} <= set(trainer._signature_columns)
    assert not {"offset_mapping", "kwargs", "inputs"} & set(trainer._signature_columns)
    assert len(set(trainer._signature_columns)) == len(trainer._signature_columns)


def test_beams_reach_the_post_processing(data, tmp_path):
    made = reader(data.examples, "beam_search")
    seen = []

    def process(examples, features, predictions):
        seen.extend(array.shape for array in predictions)
        return EvalPredictionWithProcessing({}, [], [])

    trainer = make_trainer(
        MRCTrainer,
        made,
        tmp_path,
        head="beam_search",
        arguments={"max_steps": 2},
        train_dataset=data.features.train,
        eval_dataset=data.features.validation,
        eval_examples=data.examples.validation,
        post_process_function=process,
        compute_metrics=None,
    )
    assert trainer.train().training_loss > 0
    assert trainer.evaluate()["eval_loss"] > 0
    rows = len(data.features.validation)
    assert seen == [(rows, 5), (rows, 5), (rows, 25), (rows, 25), (rows,)]


def halves(data):
    featurizer = Featurizer(data.reader.tokenizer, max_seq_length=96, doc_stride=24)
    examples = {"first": data.examples.validation[:8], "rest": data.examples.validation[8:]}
    return {name: featurizer.eval_features(part, labels=True) for name, part in examples.items()}, examples


def test_named_data_sets_are_evaluated_one_by_one(data, tmp_path):
    features, examples = halves(data)
    trainer = trainer_of(data, tmp_path, eval_dataset=features, eval_examples=examples)
    metrics = trainer.evaluate()
    for name, part in examples.items():
        assert metrics[f"eval_{name}_total"] == len(part)
        alone = trainer.evaluate(features[name], part)
        assert metrics[f"eval_{name}_f1"] == alone["eval_f1"]
        written = json.loads((tmp_path / f"eval_{name}_predictions.json").read_text())
        assert list(written) == [example["id"] for example in part]
    with pytest.raises(InputError, match=r"data sets 'first', 'rest', and `eval_examples` is a list without"):
        trainer.evaluate(eval_examples=data.examples.validation)
    with pytest.raises(InputError, match=r"`eval_examples` is a dict of 'first'; give a dict of the examples of each"):
        trainer.evaluate(eval_examples={"first": examples["first"]})


def test_examples_are_those_of_the_features(data, tmp_path):
    trainer = trainer_of(data, tmp_path)
    expected = trainer.evaluate()["eval_f1"]
    backwards = data.examples.validation[::-1]
    assert trainer.evaluate(eval_examples=backwards)["eval_f1"] == expected
    assert [one["id"] for one in trainer.answered.predictions] == [one["id"] for one in backwards]
    with pytest.raises(InputError, match=r"has example_id .* which none of the 19 examples has"):
        trainer.evaluate(eval_examples=data.examples.validation[:-1])
    with pytest.raises(InputError, match=r"made to train on; give features from `eval_features`"):
        trainer.evaluate(data.features.train, data.examples.train)


def test_the_loss_alone_needs_no_answers(data, tmp_path):
    trainer = trainer_of(data, tmp_path, arguments={"prediction_loss_only": True})
    metrics = trainer.evaluate()
    assert "eval_loss" in metrics
    assert "eval_f1" not in metrics
    assert trainer.answered is None
