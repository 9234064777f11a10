"""Errors, warnings and generation settings; the numbers are compared in the parity suite."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import DataCollatorForSeq2Seq, GenerationConfig

import portico
from models import Line, Pairs, Points, tiny_t5, tiny_tokenizer, toy_arguments
from portico.errors import InputError
from portico.seq2seq import (
    compute_padded_length,
    find_padding_token,
    generation_inputs,
    generation_options,
    shards_weights,
    whole_weights,
)


def arguments(output_dir, **changes):
    return toy_arguments(output_dir, portico.Seq2SeqTrainingArguments, **changes)


def seq2seq_trainer(output_dir, parts=None, trainer_class=portico.Seq2SeqTrainer, **changes):
    tokenizer = tiny_tokenizer()
    options = {
        "model": tiny_t5(),
        "args": arguments(output_dir, **{"generation_max_length": 6, **changes}),
        "data_collator": DataCollatorForSeq2Seq(tokenizer),
        "eval_dataset": Pairs(5),
        "train_dataset": Pairs(6),
        "processing_class": tokenizer,
        **(parts or {}),
    }
    return trainer_class(**options)


@pytest.mark.parametrize("replaced", [False, True])
def test_plain_training_arguments_are_rejected(replaced, tmp_path, monkeypatch):
    arguments_class = transformers.TrainingArguments
    if replaced:
        monkeypatch.setattr(transformers, "TrainingArguments", portico.TrainingArguments)
    with pytest.raises(InputError, match="`args` is a TrainingArguments, which has no settings of generation; give"):
        seq2seq_trainer(tmp_path, {"args": toy_arguments(tmp_path, arguments_class)})


def test_other_argument_types_are_rejected(tmp_path):
    with pytest.raises(TypeError, match=r"`args` is an instance of builtins\.dict; give"):
        seq2seq_trainer(tmp_path, {"args": {}})


def test_transformers_arguments_are_accepted(tmp_path):
    args = toy_arguments(tmp_path, transformers.Seq2SeqTrainingArguments, predict_with_generate=True)
    trainer = seq2seq_trainer(tmp_path, {"args": args})
    assert trainer.args is args
    assert trainer.predict(Pairs(2), max_length=4).predictions.dtype.name == "int64"


def test_default_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(portico.Seq2SeqTrainer(model=tiny_t5()).args, portico.Seq2SeqTrainingArguments)


def test_model_without_generate_is_rejected(tmp_path):
    parts = {
        "model": Line(),
        "data_collator": None,
        "processing_class": None,
        "eval_dataset": Points(2),
        "compute_metrics": lambda result: {},
    }
    trainer = seq2seq_trainer(tmp_path, parts, predict_with_generate=True)
    with pytest.raises(InputError, match="`predict_with_generate=True`, but Line has no `generate`; give a model"):
        trainer.evaluate()
    trainer = seq2seq_trainer(tmp_path, parts, predict_with_generate=True, eval_strategy="epoch")
    with pytest.raises(InputError, match="Line has no `generate`"):
        trainer.train()


def test_missing_padding_token_is_rejected_before_training(tmp_path):
    model = tiny_t5()
    model.config.pad_token_id = None
    with pytest.raises(InputError, match="Pad_token_id must be set"):
        seq2seq_trainer(tmp_path, {"model": model, "processing_class": None}, predict_with_generate=True).predict(
            Pairs(2)
        )


def test_overridden_prediction_step_needs_no_padding_token(tmp_path):
    class OwnStep(portico.Seq2SeqTrainer):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **gen_kwargs):
            return None, inputs["labels"], inputs["labels"]

    parts = {"model": Line(), "processing_class": None}
    assert seq2seq_trainer(tmp_path, parts, trainer_class=OwnStep, predict_with_generate=True) is not None


def test_model_init_models_get_generation_config(tmp_path):
    config = GenerationConfig(max_length=5, pad_token_id=0, decoder_start_token_id=0)
    parts = {"model": None, "model_init": tiny_t5}
    trainer = seq2seq_trainer(tmp_path, parts, generation_config=config, max_steps=1)
    first = trainer.model
    trainer.train()
    assert trainer.model is not first
    assert trainer.model.generation_config.max_length == 5


def test_generation_settings_reach_every_named_dataset(tmp_path):
    seen = []

    class Watched(portico.Seq2SeqTrainer):
        def prediction_step(self, *args, **kwargs):
            seen.append(dict(self._gen_kwargs))
            return super().prediction_step(*args, **kwargs)

    trainer = seq2seq_trainer(tmp_path, trainer_class=Watched, predict_with_generate=True)
    metrics = trainer.evaluate({"short": Pairs(2), "long": Pairs(2)}, num_beams=2)
    assert {"eval_short_loss", "eval_long_loss"} <= set(metrics)
    assert seen == [{"max_length": 6, "num_beams": 2}] * 2


def test_compute_metrics_gets_tokens(tmp_path):
    shapes = []

    def count(prediction):
        shapes.append((prediction.predictions.shape, prediction.label_ids.shape))
        return {"rows": len(prediction.predictions)}

    trainer = seq2seq_trainer(tmp_path, {"compute_metrics": count}, predict_with_generate=True)
    assert trainer.evaluate()["eval_rows"] == 5
    assert shapes == [((5, 20), (5, 20))]


def test_synced_gpus_with_sharded_weights(monkeypatch):
    class Spread:
        zero_stage_3 = True
        model = None

    assert not shards_weights(SimpleNamespace(model=None))
    for kind in ("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy"):
        monkeypatch.setattr(f"portico.seq2seq.{kind}", Spread)
        assert shards_weights(Spread())
        monkeypatch.undo()
    Spread.zero_stage_3 = False
    monkeypatch.setattr("portico.seq2seq.DeepSpeedStrategy", Spread)
    assert not shards_weights(Spread())


def test_sharded_weights_are_gathered_for_generation(monkeypatch):
    class Wrapped(torch.nn.Module):
        @classmethod
        def summon_full_params(cls, module):
            return ("whole", module)

    monkeypatch.setattr("portico.seq2seq.FullyShardedDataParallel", Wrapped)
    wrapped = Wrapped()
    assert whole_weights(SimpleNamespace(model=wrapped)) == ("whole", wrapped)
    with whole_weights(SimpleNamespace(model=torch.nn.Linear(1, 1))):
        pass


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"max_length": 12, "num_beams": 3}),
        ({"max_length": 5}, {"max_length": 5, "num_beams": 3}),
        ({"max_new_tokens": 5}, {"max_new_tokens": 5, "num_beams": 3}),
        ({"max_length": None, "num_beams": None}, {"max_length": 12, "num_beams": 3}),
        ({"num_beams": 1, "top_k": 4}, {"max_length": 12, "num_beams": 1, "top_k": 4}),
    ],
    ids=str,
)
def test_generation_defaults_from_arguments(given, expected):
    args = SimpleNamespace(generation_max_length=12, generation_num_beams=3)
    assert generation_options(given, args) == expected


def test_unset_arguments_set_no_generation_defaults():
    args = SimpleNamespace(generation_max_length=None, generation_num_beams=None)
    assert generation_options({"num_beams": None}, args) == {"num_beams": None}


def test_decoder_inputs_from_labels_are_dropped():
    tokens = torch.ones(2, 3)
    made = {"input_ids": tokens, "labels": tokens, "decoder_input_ids": tokens, "decoder_attention_mask": tokens}
    assert set(generation_inputs(made)) == {"input_ids", "labels"}
    own = {**made, "decoder_input_ids": torch.ones(2, 1)}
    assert set(generation_inputs(own)) == set(own)


@pytest.mark.parametrize(
    ("length", "max_length", "max_new_tokens", "expected"),
    [(4, 9, None, 9), (9, 9, None, 9), (12, 9, None, 12), (12, 9, 14, 15), (15, 9, 14, 15), (17, 9, 14, 17)],
)
def test_padded_length(length, max_length, max_new_tokens, expected):
    config = SimpleNamespace(max_length=max_length, max_new_tokens=max_new_tokens)
    assert compute_padded_length(torch.ones(2, length), config) == expected


def test_padding_keeps_dtype_and_rows():
    trainer = SimpleNamespace(processing_class=tokenizer(1, None), model=None)
    padded = portico.Seq2SeqTrainer._pad_tensors_to_max_len(trainer, torch.tensor([[5, 6], [7, 8]]), 4)
    assert padded.tolist() == [[5, 6, 1, 1], [7, 8, 1, 1]]
    assert padded.dtype is torch.int64


def tokenizer(pad, end):
    return SimpleNamespace(pad_token_id=pad, eos_token_id=end)


def model(pad):
    return SimpleNamespace(config=SimpleNamespace(pad_token_id=pad))


@pytest.mark.parametrize(
    ("processing_class", "expected"), [(tokenizer(0, 4), 0), (tokenizer(None, 4), 4), (None, 7), (object(), 7)]
)
def test_padding_token(processing_class, expected):
    assert find_padding_token(processing_class, model(7)) == expected


def test_missing_padding_token_error():
    with pytest.raises(InputError, match=r"`processing_class` has neither a padding token nor an end token; set one"):
        find_padding_token(tokenizer(None, None), model(7))
    for padless in (model(None), torch.nn.Linear(1, 1)):
        with pytest.raises(ValueError, match="Pad_token_id must be set in the configuration of the model"):
            find_padding_token(None, padless)


def test_generation_config_object_is_copied():
    config = GenerationConfig(num_beams=2)
    loaded = portico.Seq2SeqTrainer.load_generation_config(config)
    assert loaded is not config
    assert loaded.num_beams == 2


@pytest.mark.parametrize("place", ["folder", "file", "text"])
def test_generation_config_is_loaded_from(place, tmp_path):
    GenerationConfig(num_beams=2).save_pretrained(tmp_path)
    sources = {"folder": tmp_path, "file": tmp_path / "generation_config.json", "text": str(tmp_path)}
    assert portico.Seq2SeqTrainer.load_generation_config(sources[place]).num_beams == 2


def test_generation_config_with_other_file_name(tmp_path):
    GenerationConfig(num_beams=3).save_pretrained(tmp_path, config_file_name="beams.json")
    assert portico.Seq2SeqTrainer.load_generation_config(str(tmp_path / "beams.json")).num_beams == 3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_invalid_generation_config_is_rejected_before_training():
    with pytest.raises(ValueError, match=r"(?s)`top_p`.* Fix these issues to train your model\.$"):
        portico.Seq2SeqTrainer.load_generation_config(GenerationConfig(do_sample=False, top_p=0.9))


def test_other_generation_config_types_are_rejected():
    with pytest.raises(InputError, match=r"`generation_config` is a dict; give a `GenerationConfig`, the path"):
        portico.Seq2SeqTrainer.load_generation_config({"num_beams": 2})
