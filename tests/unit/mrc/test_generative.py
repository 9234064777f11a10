import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, PrinterCallback
from transformers.trainer_utils import EvalPrediction, PredictionOutput

from portico import Seq2SeqMRCTrainer, Seq2SeqTrainingArguments
from portico.mrc import FiDDataCollator, GeneratedAnswerProcessing, GenerativeFeaturizer, SquadMetrics
from portico.mrc.generative import new_generator
from portico.mrc.primeqa import EvalPredictionWithProcessing, MRCSeq2SeqTrainer
from unit.mrc.small_readers import QUIET, source

SHAPE = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}


def made(num_passages=None):
    examples = source(num_train=16, num_validation=15)
    torch.manual_seed(0)
    texts = [text for one in examples.train for text in (one["context"], one["question"])]
    generator = new_generator(texts, vocab_size=300, model=SHAPE, fusion_in_decoder=num_passages is not None)
    featurizer = GenerativeFeaturizer(generator.tokenizer, 48, 8, num_passages)
    return SimpleNamespace(
        model=generator.model,
        tokenizer=generator.tokenizer,
        train=featurizer.train_features(examples.train),
        features=featurizer.eval_features(examples.validation),
        examples=examples.validation,
    )


@pytest.fixture(scope="module")
def parts():
    return made()


def trainer_of(parts, tmp_path, collator=DataCollatorForSeq2Seq, arguments=None, **options):
    fields = {**QUIET, "predict_with_generate": True, "generation_max_length": 6, **(arguments or {})}
    settings = {
        "processing_class": parts.tokenizer,
        "data_collator": collator(parts.tokenizer, parts.model),
        "train_dataset": parts.train,
        "eval_dataset": parts.features,
        "eval_examples": parts.examples,
        "post_process_function": GeneratedAnswerProcessing(parts.tokenizer, version_2_with_negative=True),
        "compute_metrics": SquadMetrics(version_2_with_negative=True),
    }
    trainer = Seq2SeqMRCTrainer(
        parts.model, Seq2SeqTrainingArguments(str(tmp_path), **fields), **{**settings, **options}
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def whole(parts):
    """Return the same post-processing in transformers' form, called once with all outputs."""
    processing = GeneratedAnswerProcessing(parts.tokenizer, version_2_with_negative=True)
    outputs = []

    def process(examples, features, output, stage="eval"):
        outputs.append((stage, output))
        return processing(examples, features, output)

    return process, outputs


def test_answers_are_scored_and_written_with_references(parts, tmp_path):
    metrics = trainer_of(parts, tmp_path).evaluate()
    assert {"eval_f1", "eval_loss", "eval_runtime"} <= set(metrics)
    predictions = json.loads((tmp_path / "eval_predictions.json").read_text())
    references = json.loads((tmp_path / "eval_references.json").read_text())
    ids = [example["id"] for example in parts.examples]
    assert [one["id"] for one in predictions] == [one["id"] for one in references] == ids
    assert not (tmp_path / "eval_predictions_processed.json").exists()


def test_streamed_answers_equal_those_from_the_whole_output(parts, tmp_path):
    process, outputs = whole(parts)
    streamed, collected = trainer_of(parts, tmp_path), trainer_of(parts, tmp_path, post_process_function=process)
    assert streamed.evaluate()["eval_f1"] == collected.evaluate()["eval_f1"]
    assert streamed.answered.predictions == collected.answered.predictions
    stage, output = outputs[0]
    assert stage == "eval"
    assert output.predictions.shape[0] == output.num_samples == len(parts.features)
    assert output.metrics["eval_loss"] > 0


def test_a_prediction_has_answers_and_metrics(parts, tmp_path):
    process, outputs = whole(parts)
    trainer = trainer_of(parts, tmp_path, post_process_function=process)
    predicted = trainer.predict(parts.features, parts.examples, max_length=4, num_beams=2)
    assert isinstance(predicted, PredictionOutput)
    assert outputs[0][0] == "predict"
    assert trainer._gen_kwargs == {"max_length": 4, "num_beams": 2}
    assert "test_f1" in predicted.metrics
    assert trainer.compute_metrics is not None
    tokens = trainer.predict(test_dataset=parts.features, metric_key_prefix="held")
    assert tokens.predictions.shape[0] == len(parts.features)


def test_results_of_primeqa_post_processing_are_returned_unchanged(parts, tmp_path):
    def process(examples, features, output):
        return EvalPredictionWithProcessing([len(output.predictions)], [], [])

    trainer = trainer_of(parts, tmp_path, post_process_function=process, compute_metrics=None)
    assert isinstance(trainer, MRCSeq2SeqTrainer)
    assert trainer.predict(parts.features, parts.examples).predictions == [15]
    assert trainer.predict().predictions == [15]
    assert json.loads((tmp_path / "predict_predictions.json").read_text()) == [15]


def test_generation_keywords_apply_to_one_evaluation(parts, tmp_path):
    trainer = trainer_of(parts, tmp_path)
    trainer.evaluate(max_length=3)
    assert trainer._gen_kwargs == {"max_length": 3}
    trainer.evaluate()
    assert trainer._gen_kwargs == {"max_length": 6}


def test_without_generation_there_is_only_a_loss(parts, tmp_path):
    metrics = trainer_of(parts, tmp_path, arguments={"predict_with_generate": False}).evaluate()
    assert metrics["eval_loss"] > 0
    assert "eval_f1" not in metrics
    assert not (tmp_path / "eval_predictions.json").exists()


def test_two_processes_return_the_same_answers(parts, tmp_path):
    one = trainer_of(parts, tmp_path / "one")
    two = trainer_of(parts, tmp_path / "two", arguments={"strategy": "ddp_fork", "devices": 2})
    scores = [trainer.evaluate()["eval_f1"] for trainer in (one, two)]
    assert scores[0] == scores[1]
    assert two.answered.predictions == one.answered.predictions


def test_fusion_in_decoder_is_trained_and_answers(tmp_path):
    parts = made(num_passages=3)
    trainer = trainer_of(parts, tmp_path, FiDDataCollator, {"max_steps": 3, "learning_rate": 1e-2})
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    metrics = trainer.evaluate(num_beams=2)
    assert metrics["eval_loss"] < before
    assert "eval_f1" in metrics
    trainer.save_model()
    assert (tmp_path / "model.safetensors").is_file()


def test_the_last_feature_of_an_example_answers_it(parts):
    processing = GeneratedAnswerProcessing(parts.tokenizer)
    words = parts.tokenizer(["A", "B", "C"], padding=True, return_tensors="np")["input_ids"]
    tokens = np.concatenate([words, np.full((3, 1), -100)], axis=1)
    examples = [{"id": "x", "answers": {"text": ["b"]}}, {"id": "y", "answers": {"text": []}}]
    features = [{"example_id": "x"}, {"example_id": "x"}, {"example_id": "y"}]
    answered = processing(examples, features, EvalPrediction(tokens, None))
    assert answered.predictions == [{"id": "x", "prediction_text": "B"}, {"id": "y", "prediction_text": "C"}]
    assert answered.label_ids == examples


def test_features_hold_question_and_context_in_one_sequence(parts):
    featurizer = GenerativeFeaturizer(parts.tokenizer, 48, 4)
    example = {"id": "x", "question": " Who?", "context": "A man.", "answers": {"text": ["A man of men"]}}
    feature = featurizer.eval_features([example])[0]
    assert parts.tokenizer.decode(feature["input_ids"], skip_special_tokens=True).startswith(
        "question : Who? context : A man."
    )
    assert len(feature["labels"]) <= 4
    assert feature["example_id"] == "x"
    nothing = featurizer.train_features([{**example, "answers": {"text": []}}])[0]
    assert nothing["labels"] == [parts.tokenizer.eos_token_id]
    assert "example_id" not in nothing


def test_passages_have_separate_rows(parts):
    featurizer = GenerativeFeaturizer(parts.tokenizer, 24, 4, num_passages=2)
    example = {"id": "x", "question": "Who?", "context": "a b c", "answers": {"text": ["a"]}}
    cut, listed = (
        featurizer.train_features([{**example, "context": context}])[0]["input_ids"]
        for context in ("a b c", ["a", "b c", "left out"])
    )
    assert cut == listed
    assert [len(row) for row in cut] == [24, 24]


def test_named_data_sets_are_evaluated_one_by_one(parts, tmp_path):
    trainer = trainer_of(parts, tmp_path)
    expected = trainer.evaluate(num_beams=2)
    named = trainer.evaluate({"all": parts.features}, {"all": parts.examples}, num_beams=2)
    assert named["eval_all_f1"] == expected["eval_f1"]
    assert named["eval_all_loss"] == expected["eval_loss"]
