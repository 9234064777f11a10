"""Whether the settings of a reading comprehension run can be used, found out before any work."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import EarlyStoppingCallback

from portico.argument_rules import argument_rules
from portico.arguments import TrainingArguments
from portico.configured_run import RunSettings
from portico.errors import InputError
from portico.value_rules import Rule, check_values

_INTEGER = Rule((int,))
_POSITIVE = Rule((int,), least=1)
_TEXT_OR_NULL = Rule((str, type(None)))

_RULES: Mapping[str, Mapping[str, Rule]] = {
    "model": {"name_or_path": _TEXT_OR_NULL},
    "data": {
        "train_file": _TEXT_OR_NULL,
        "validation_file": _TEXT_OR_NULL,
        "num_train": _POSITIVE,
        "num_validation": _POSITIVE,
        "seed": _INTEGER,
        "max_train_samples": Rule((int, type(None))),
        "max_eval_samples": Rule((int, type(None))),
        "skip_invalid": Rule((bool,)),
    },
    "preprocess": {
        "max_seq_length": _POSITIVE,
        "doc_stride": Rule((int,), least=0),
        "max_question_length": Rule((int, type(None)), least=1),
        "vocab_size": _POSITIVE,
    },
    "postprocess": {
        "n_best_size": _POSITIVE,
        "max_answer_length": _POSITIVE,
        "null_score_diff_threshold": Rule((float,)),
    },
    "metric": {"version_2_with_negative": Rule((bool, type(None)))},
}


def check_settings(settings: RunSettings) -> None:
    """Refuse values of the wrong type or out of range.

    Args:
        settings: The groups of the configuration as ``run_mrc`` takes them.

    Raises:
        InputError: Names the setting, what came and what is allowed.
    """
    rules = {**_RULES, "args": argument_rules()}
    for group, rules_of_group in rules.items():
        check_values(group, getattr(settings, group), rules_of_group)


def check_callbacks(callbacks: Sequence[Any], args: TrainingArguments) -> None:
    """Refuse early stopping where nothing tells when to stop.

    Raises:
        InputError: Says which training argument is missing.
    """
    if not any(isinstance(callback, EarlyStoppingCallback) for callback in callbacks):
        return
    if args.eval_strategy == "no":
        raise InputError(
            "Early stopping compares evaluations, but `args.eval_strategy=no` makes none during training; set it to "
            "steps or epoch, or leave `callbacks=early_stopping` out."
        )
    if args.metric_for_best_model is None:
        raise InputError(
            "Early stopping compares evaluations, but no metric was chosen; set `args.metric_for_best_model`, for "
            "example to f1, or leave `callbacks=early_stopping` out."
        )
