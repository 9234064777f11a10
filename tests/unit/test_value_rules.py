import math

import pytest

from portico.argument_rules import argument_rules
from portico.errors import InputError
from portico.value_rules import Rule, check_values

COUNT = Rule((int,), least=1)
SHARE = Rule((float, type(None)), least=0)


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        (COUNT, [1, 7], [0, -1, 1.5, 1.0, "1", True, None]),
        (SHARE, [0, 0.5, 3, None], [-0.1, math.nan, "abc", False]),
        (Rule((bool, type(None))), [True, False, None], ["maybe", 1]),
        (Rule((str,)), ["a", ""], [3, None]),
        (Rule((float,)), [-1.0, 2], ["abc", None]),
    ],
)
def test_rule_allows_types_within_range(rule, allowed, refused):
    assert all(rule.allows(value) for value in allowed)
    assert not any(rule.allows(value) for value in refused)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (COUNT, "an integer of 1 or more"),
        (SHARE, "a number of 0 or more, or null"),
        (Rule((bool,)), "true or false"),
    ],
)
def test_error_names_value_and_allowed_values(rule, words):
    with pytest.raises(InputError, match=rf"^`data\.size=many` cannot be used; set it to {words}\.$"):
        check_values("data", {"other": 1, "size": "many"}, {"size": rule})


def test_training_argument_rules_follow_annotations():
    rules = argument_rules()
    assert rules["max_steps"] == Rule((int,))
    assert rules["learning_rate"] == Rule((float,), least=0)
    assert rules["save_total_limit"] == Rule((int, type(None)))
    assert rules["bf16"] == Rule((bool,))
    assert not {"optim", "lr_scheduler_type", "resume_from_checkpoint", "report_to"} & set(rules)


@pytest.mark.parametrize("name", ["seed", "per_device_train_batch_size", "gradient_accumulation_steps"])
def test_numbers_that_fail_later_are_rejected(name):
    with pytest.raises(InputError, match=f"`args.{name}=-1` cannot be used"):
        check_values("args", {name: -1}, argument_rules())
