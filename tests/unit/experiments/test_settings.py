import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from portico import IPUTrainingArguments, TrainingArguments
from portico.arguments import argument_rules
from portico.errors import InputError
from portico.experiments.settings import (
    NO_DEFAULT,
    collect_further_keys,
    list_settings,
    plain_value,
    rule_of,
    schema_of,
    setting,
    suggestion,
)
from portico.gradient_descent.topics import BagOfWordsClassifier
from portico.mrc import SquadV2
from portico.mrc.config import EncoderDecoderModel, EncoderModel, MRCData, SpanAnswers
from portico.rules import Rule, check_values
from portico.tasks.models import SmallBert, SmallGPT2, SmallT5, SmallViT

COUNT = Rule((int,), least=1)
SHARE = Rule((float, type(None)), least=0)


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        (COUNT, [1, 7], [0, -1, 1.5, 1.0, "1", True, None]),
        (SHARE, [0, 0.5, 3, None], [-0.1, math.nan, "abc", False]),
        (Rule((bool, type(None))), [True, False, None], ["maybe", 1]),
        (Rule((str,)), ["a", ""], [3, None]),
        (Rule((float,)), [-1.0, 2, math.inf], ["abc", None, math.nan]),
        (Rule((float,), is_finite=True), [-1.0, 2], [math.inf, -math.inf, math.nan]),
        (Rule((float,), choices=("best",)), [1.5, "best"], ["worst", None]),
    ],
)
def test_a_rule_allows_its_types_within_its_range(rule, allowed, refused):
    assert all(rule.allows(value) for value in allowed)
    assert not any(rule.allows(value) for value in refused)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (COUNT, "an integer of 1 or more"),
        (SHARE, "a number of 0 or more, or null"),
        (Rule((bool,)), "true or false"),
        (Rule((), choices=("top", "exhaustive")), "one of top, exhaustive"),
    ],
)
def test_a_refused_value_is_named_with_what_is_allowed(rule, words):
    with pytest.raises(InputError, match=rf"^`data\.size=many` cannot be used; set it to {words}\.$"):
        check_values("data", {"other": 1, "size": "many"}, {"size": rule})


def test_training_arguments_have_the_rules_of_their_annotations():
    rules = argument_rules()
    assert rules["max_steps"] == Rule((int,))
    assert rules["learning_rate"] == Rule((float,), least=0)
    assert rules["warmup_steps"] == Rule((float,), least=0, is_finite=True)
    assert rules["max_grad_norm"].allows(math.inf)
    assert rules["save_total_limit"] == Rule((float, type(None)))
    assert rules["bf16"] == Rule((bool,))
    assert rules["eval_strategy"] == Rule((), choices=("no", "steps", "epoch"))
    assert rules["report_to"] == Rule((type(None), str, list))
    assert not {"resume_from_checkpoint", "run_name"} & set(rules)


NUMBERS = [name for name, rule in argument_rules().items() if {int, float} & set(rule.kinds)]
UNUSABLE = [
    ("seed", -1),
    ("seed", 2**32),
    ("per_device_train_batch_size", -1),
    ("gradient_accumulation_steps", -1),
    *((name, value) for name in NUMBERS for value in (10**30, "", math.nan)),
]


@pytest.mark.parametrize(("name", "value"), UNUSABLE)
def test_numbers_that_would_fail_later_are_refused(name, value):
    with pytest.raises(InputError, match=f"`args.{name}={value}` cannot be used"):
        check_values("args", {name: value}, argument_rules())


def test_numbers_beyond_64_bits_are_refused_where_the_class_decides():
    with pytest.raises(InputError, match=r"`model.size=-9223372036854775808` .* more than 64 bits"):
        check_values("model", {"size": -(2**63)}, {})


@pytest.mark.parametrize(
    ("annotation", "rule"),
    [
        (int, Rule((int,))),
        (str | list[str] | None, Rule((str, list, type(None)))),
        (Literal["a", "b"] | None, Rule((type(None),), choices=("a", "b"))),
        (Any, None),
        (dict[str, int] | None, Rule((dict, type(None)))),
    ],
)
def test_an_annotation_is_a_rule(annotation, rule):
    assert rule_of(annotation) == rule


@dataclass(kw_only=True)
class Own:
    """Settings as a user writes them."""

    size: int = setting(3, least=1)
    """Size of the thing, in tokens. It is read once."""
    name: str
    """What it is called."""


def test_a_dataclass_says_everything_about_its_keys():
    known = schema_of(Own).known
    assert (known["size"].default, known["size"].rule, known["size"].help) == (
        3,
        Rule((int,), least=1),
        "Size of the thing, in tokens",
    )
    assert known["name"].default is NO_DEFAULT
    assert not schema_of(Own).is_open


@pytest.mark.parametrize("target", [MRCData, EncoderModel, SpanAnswers])
def test_every_field_of_a_group_is_documented(target):
    assert [name for name, one in schema_of(target).known.items() if not one.help] == []


def test_a_plain_value_shares_nothing_with_the_default_it_is_made_of():
    default = {"a": [(1, 2)]}
    plain = plain_value(default)
    assert plain == {"a": [[1, 2]]}
    plain["a"].append(3)
    assert default == {"a": [(1, 2)]}


def test_further_keys_are_collected():
    assert {"hidden_size", "name_or_path"} <= set(schema_of(EncoderModel).known)
    assert "config" not in schema_of(EncoderModel).known
    values = collect_further_keys(EncoderModel, {"head": "span", "hidden_size": 8})
    assert values == {"head": "span", "config": {"hidden_size": 8}}
    assert list_settings(EncoderModel(**values))["hidden_size"] == 8


def test_a_constructor_says_everything_about_its_keys():
    known = schema_of(BagOfWordsClassifier).known
    assert known["dropout"].default == 0.2
    assert known["dropout"].rule == Rule((float,))
    assert known["dropout"].help == "Part of the average that is dropped in training, 0 to 1"
    assert known["vocab_size"].default is NO_DEFAULT


NUMBERS = {
    f"{target.__name__}.{name}": known
    for target in (EncoderModel, EncoderDecoderModel, SmallBert, SmallGPT2, SmallT5, SmallViT)
    for name, known in schema_of(target).known.items()
    if type(known.effective) in (int, float) or name in ("n_inner", "vocab_size", "classifier_dropout")
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_a_model_have_bounds(name):
    for value in (-1, -0.5, math.inf, math.nan):
        allowed = rf"^`model\.{name}={value}` cannot be used; set it to a.* (number|integer) "
        with pytest.raises(InputError, match=allowed):
            check_values("model", {name: value}, {name: NUMBERS[name].rule})


@pytest.mark.parametrize("name", ["SmallBert.hidden_size", "SmallGPT2.n_head", "SmallT5.num_layers", "SmallT5.d_kv"])
def test_sizes_of_a_model_are_positive(name):
    with pytest.raises(InputError, match=f"`model.{name}=0` cannot be used; set it to an integer of 1 or more"):
        check_values("model", {name: 0}, {name: NUMBERS[name].rule})


def test_keyword_arguments_of_torch_are_no_settings():
    assert {"no_answer_threshold", "average_precision"} == set(schema_of(SquadV2).known)
    assert not schema_of(SquadV2).is_open
    assert schema_of(lambda **kwargs: kwargs).is_open


def test_training_arguments_are_documented_by_the_nearest_class():
    known = schema_of(TrainingArguments).known
    assert known["learning_rate"].help == "Peak learning rate"
    assert known["evaluation_strategy"].help == "Renamed to eval_strategy"
    assert schema_of(IPUTrainingArguments).known["lamb"].help == "Train with LAMB"
    assert [name for name, one in schema_of(IPUTrainingArguments).known.items() if not one.help] == []


@pytest.mark.parametrize(
    ("unknown", "known", "end"),
    [
        ("args.sed", ["args.seed"], "; the nearest valid names are: args.seed."),
        ("args.doc_stride", ["preprocess.doc_stride"], "; the nearest valid names are: preprocess.doc_stride."),
        ("trainer.max_epochs", ["args.num_train_epochs"], "; use args.num_train_epochs."),
        ("trainer.max_epochs", ["trainer.num_epochs"], "; use trainer.num_epochs."),
        ("max_length", ["preprocess.max_seq_length"], "; use preprocess.max_seq_length."),
        ("args.max_steps", ["args.qqqqqqqq"], "; those of args are: qqqqqqqq."),
        ("qqq", ["args", "model"], "."),
        ("metric.qqq", ["metric.average", "data.j"], "; those of metric are: average."),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_that_was_meant(unknown, known, end):
    assert suggestion(unknown, known) == end
