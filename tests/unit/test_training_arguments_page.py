"""Every field of the training arguments is described by its class, and has a row on the documentation page."""

import dataclasses
import logging

import pytest
from training_arguments import LIGHTNING, PAGE, SECTIONS, documented, page

import portico
from models import ToyDataset, tiny_bert, toy_arguments, toy_trainer
from portico.deprecated import REMOVED, RENAMED
from portico.loop.validation import WITHOUT_EFFECT

ARGUMENTS = (portico.TrainingArguments, portico.Seq2SeqTrainingArguments)
KNOWN = documented(ARGUMENTS[0]) | documented(ARGUMENTS[1])
SET = {"local_rank": 0, "sortish_sampler": True}


def test_docstrings_describe_every_field():
    fields = {field.name for arguments in ARGUMENTS for field in dataclasses.fields(arguments)}
    assert not KNOWN.keys() & REMOVED.keys()
    fields -= REMOVED.keys()
    assert sorted(fields - KNOWN.keys()) == [], "say in the docstring of the class what these fields do here"
    assert sorted(KNOWN.keys() - fields) == [], "no such field"
    assert LIGHTNING.keys() | SECTIONS.keys() <= fields
    assert all(KNOWN[name].startswith("No effect, with a warning") for name in WITHOUT_EFFECT)


@pytest.mark.parametrize("name", ["eval_strategy", "logging_strategy", "save_strategy", "hub_strategy"])
def test_every_choice_is_described(name):
    default = getattr(portico.TrainingArguments("out"), name)
    assert [choice.value for choice in type(default) if f'"{choice.value}"' not in KNOWN[name]] == []


def test_every_transformers_4_argument_has_a_row():
    assert all(page().count(f"\n| `{name}` |") == 1 for name in [*REMOVED, *RENAMED])


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
