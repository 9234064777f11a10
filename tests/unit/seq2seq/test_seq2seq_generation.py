"""What is generated with, and how it is padded, without a model that generates."""

from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from portico.errors import InputError
from portico.seq2seq.trainer import (
    generation_inputs,
    generation_options,
    load_generation_config,
    pad_tokens,
    padded_length,
    padding_token,
)


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
def test_arguments_fill_in_what_the_caller_left_open(given, expected):
    args = SimpleNamespace(generation_max_length=12, generation_num_beams=3)
    assert generation_options(given, args) == expected


def test_unset_arguments_fill_in_nothing():
    args = SimpleNamespace(generation_max_length=None, generation_num_beams=None)
    assert generation_options({"num_beams": None}, args) == {"num_beams": None}


def test_decoder_inputs_made_of_the_labels_are_left_out():
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
    assert padded_length(torch.ones(2, length), config) == expected


def test_padding_keeps_type_and_rows():
    padded = pad_tokens(torch.tensor([[5, 6], [7, 8]]), 4, 1)
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
    assert padding_token(processing_class, model(7)) == expected


def test_a_missing_padding_token_is_told():
    with pytest.raises(InputError, match=r"`processing_class` has neither a padding token nor an end token; set its"):
        padding_token(tokenizer(None, None), model(7))
    for padless in (model(None), torch.nn.Linear(1, 1)):
        with pytest.raises(ValueError, match="Pad_token_id must be set in the configuration of the model"):
            padding_token(None, padless)


def test_a_given_configuration_is_copied():
    config = GenerationConfig(num_beams=2)
    loaded = load_generation_config(config)
    assert loaded is not config
    assert loaded.num_beams == 2


@pytest.mark.parametrize("place", ["folder", "file", "text"])
def test_a_configuration_is_read_from(place, tmp_path):
    GenerationConfig(num_beams=2).save_pretrained(tmp_path)
    sources = {"folder": tmp_path, "file": tmp_path / "generation_config.json", "text": str(tmp_path)}
    assert load_generation_config(sources[place]).num_beams == 2


def test_another_file_name_is_read(tmp_path):
    GenerationConfig(num_beams=3).save_pretrained(tmp_path, config_file_name="beams.json")
    assert load_generation_config(str(tmp_path / "beams.json")).num_beams == 3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_contradicting_settings_are_refused_before_training():
    with pytest.raises(ValueError, match=r"(?s)`top_p`.* Fix these issues to train your model\.$"):
        load_generation_config(GenerationConfig(do_sample=False, top_p=0.9))


def test_something_else_is_refused():
    with pytest.raises(InputError, match=r"`generation_config` is a dict; give a `GenerationConfig`, the path"):
        load_generation_config({"num_beams": 2})
