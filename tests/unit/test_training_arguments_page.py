"""Every field of the training arguments has an effect entry in the code and a row on its documentation page."""

import dataclasses
import logging

import pytest
import transformers
from training_arguments import EFFECTS, PAGE, page

import portico
from models import ToyDataset, tiny_bert, toy_arguments, toy_trainer
from portico.deprecated import RENAMED, RetiredArguments, retired_treatments
from portico.validation import REFUSALS, WITHOUT_EFFECT

ARGUMENTS = (portico.TrainingArguments, transformers.Seq2SeqTrainingArguments)
KNOWN = EFFECTS.keys() | WITHOUT_EFFECT.keys()
SET = {"local_rank": 0, "sortish_sampler": True}


def test_every_field_has_an_effect_entry():
    fields = {field.name for arguments in ARGUMENTS for field in dataclasses.fields(arguments)}
    assert not KNOWN & retired_treatments().keys()
    fields -= retired_treatments().keys()
    assert sorted(fields - KNOWN) == [], "say in docs/training_arguments.py what these fields do here"
    assert sorted(KNOWN - fields) == [], "no such field"
    assert REFUSALS.keys() <= fields


def test_every_transformers_4_argument_has_a_row():
    assert retired_treatments().keys() == {field.name for field in dataclasses.fields(RetiredArguments)}
    names = [*retired_treatments(), *RENAMED]
    assert all(page().count(f"\n| `{name}` |") == 1 for name in names)


def test_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python docs/training_arguments.py`"


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_field_without_effect_warns_once(name, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        args = toy_arguments(tmp_path, portico.Seq2SeqTrainingArguments, max_steps=1, **{name: SET[name]})
        toy_trainer(tmp_path, parts={"args": args}).train()
    lines = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    assert lines == [f"`{name}={SET[name]!r}` has no effect: {WITHOUT_EFFECT[name]}."]


def test_defaults_do_not_warn(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        toy_trainer(tmp_path)
    assert not caplog.records


@pytest.mark.parametrize(
    ("mode", "parts", "match"),
    [
        ("all", {}, "the batch holds no `input_ids`"),
        (
            "non_padding",
            {"model": tiny_bert(), "train_dataset": ToyDataset(2), "eval_dataset": None},
            "falling back to counting all tokens. The batch",
        ),
    ],
)
def test_uncountable_tokens_warn(mode, parts, match, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        toy_trainer(tmp_path, parts=parts, max_steps=1, include_num_input_tokens_seen=mode).train()
    assert any(match in record.getMessage() for record in caplog.records)
