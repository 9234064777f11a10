"""Sequence-to-sequence runs in ONNX Runtime generate the tokens that they generate in torch."""

import copy

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import DataCollatorForSeq2Seq

import portico
from models import Pairs, tiny_t5, tiny_tokenizer, toy_arguments
from portico import ORTSeq2SeqTrainer, ORTSeq2SeqTrainingArguments
from portico.errors import InputTypeError
from portico.ort.api import get_compiled_call

EQUAL_TO_PLAIN = {"abs": 2e-5}


def mean_tokens(prediction):
    return {"mean": float(prediction.predictions.mean()), "labels": float(prediction.label_ids.mean())}


def translator(
    folder, trainer_class=ORTSeq2SeqTrainer, arguments_class=ORTSeq2SeqTrainingArguments, model=None, **changes
):
    tokenizer = tiny_tokenizer()
    options = {"predict_with_generate": True, "generation_max_length": 6, "learning_rate": 0.01, "max_steps": 2}
    return trainer_class(
        model=tiny_t5() if model is None else model,
        args=toy_arguments(folder, arguments_class, **{**options, **changes}),
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        train_dataset=Pairs(6),
        eval_dataset=Pairs(4),
        processing_class=tokenizer,
        compute_metrics=mean_tokens,
    )


def plain(folder, **changes):
    return translator(folder, portico.Seq2SeqTrainer, portico.Seq2SeqTrainingArguments, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer after a training in ONNX Runtime, and a plain one of the weights that it ended with."""
    ours = translator(tmp_path_factory.mktemp("ort"))
    ours.train()
    return ours, plain(tmp_path_factory.mktemp("plain"), model=copy.deepcopy(ours.model))


def assert_same_tokens(trained, rows, **options):
    found, expected = (trainer.predict(Pairs(rows), **options) for trainer in trained)
    np.testing.assert_array_equal(found.predictions, expected.predictions)
    np.testing.assert_array_equal(found.label_ids, expected.label_ids)
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], **EQUAL_TO_PLAIN)


@pytest.mark.slow
def test_it_evaluates_and_predicts_the_tokens_of_torch(trained):
    assert_same_tokens(trained, 4)
    found, expected = (trainer.evaluate(max_length=4) for trainer in trained)
    for name in ("eval_loss", "eval_mean", "eval_labels"):
        assert found[name] == pytest.approx(expected[name], **EQUAL_TO_PLAIN)
    # Encoder and decoder, both in ONNX Runtime.
    ours, _ = trained
    encoder = get_compiled_call(ours.model.get_encoder())
    assert encoder.report is ours.ort_report
    assert not encoder.is_on, "in a training it is a part of the model"
    assert not ours.ort_report.fallbacks
    built = len(ours.ort_report.graphs)
    ours.predict(Pairs(6), max_length=5)
    assert len(ours.ort_report.graphs) == built, "other lengths build nothing"


@pytest.mark.slow
def test_it_searches_with_beams_and_takes_single_rows(trained):
    assert_same_tokens(trained, 5, num_beams=2, max_length=8)
    assert_same_tokens(trained, 1)


def test_predictions_of_several_lengths_are_filled_up_with_minus_100(tmp_path, monkeypatch):
    trainer = translator(tmp_path, evaluate_in_ort=False)
    lengths = iter((4, 6, 6))

    def generated(**options):
        return torch.ones(options["input_ids"].shape[0], next(lengths), dtype=torch.int64)

    monkeypatch.setattr(trainer.model, "generate", generated)
    trainer.model.generation_config.max_length = 2
    trainer.model.generation_config.max_new_tokens = None
    predictions = trainer.predict(Pairs(5)).predictions
    assert predictions[:2].tolist() == [[1, 1, 1, 1, -100, -100]] * 2
    assert predictions[4].tolist() == [1] * 6


def test_the_onnx_file_takes_what_the_decoder_has_written(tmp_path):
    ours = translator(tmp_path)
    session = onnxruntime.InferenceSession(ours.save_onnx())
    axes = {value.name: value.shape for value in session.get_inputs()}
    assert axes["input_ids"] == ["batch_size", "sequence_length"]
    assert axes["decoder_input_ids"] == ["batch_size", "decoder_sequence_length"]
    inputs = {
        "input_ids": torch.randint(3, 50, (3, 7)),
        "attention_mask": torch.ones(3, 7, dtype=torch.int64),
        "decoder_input_ids": torch.randint(3, 50, (3, 4)),
    }
    (logits,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
    with torch.no_grad():
        expected = ours.model.eval()(**inputs).logits
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-5)


def test_plain_arguments_are_refused(tmp_path):
    args = toy_arguments(tmp_path, portico.Seq2SeqTrainingArguments)
    with pytest.raises(InputTypeError, match=r"`args` is a Seq2SeqTrainingArguments; give `portico.ORTSeq2SeqTrain"):
        ORTSeq2SeqTrainer(tiny_t5(), args)
