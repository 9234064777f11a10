"""Whether the settings of a reading comprehension run can be used, found out before any work."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import EarlyStoppingCallback

from portico.argument_rules import argument_rules
from portico.arguments import TrainingArguments
from portico.configured_run import RunSettings
from portico.errors import InputError
from portico.mrc.experiment.preprocessing import PREPROCESS_RULES
from portico.mrc.metrics.chosen import METRIC_RULES
from portico.value_rules import Rule, check_values

_INTEGER = Rule((int,))
_POSITIVE = Rule((int,), least=1)
_TEXT_OR_NULL = Rule((str, type(None)))
_FILES = Rule((str, list, type(None)))

_RULES: Mapping[str, Mapping[str, Rule]] = {
    "model": {
        "name_or_path": _TEXT_OR_NULL,
        "head": _TEXT_OR_NULL,
        "teacher": _TEXT_OR_NULL,
        "distillation_loss": _TEXT_OR_NULL,
        "distillation_temperature": Rule((float, type(None))),
        "distillation_weight": Rule((float, type(None))),
    },
    "data": {
        "train_file": _FILES,
        "validation_file": _FILES,
        "predict_file": _TEXT_OR_NULL,
        "dataset_name": _TEXT_OR_NULL,
        "dataset_config_name": _TEXT_OR_NULL,
        "train_split": Rule((str,)),
        "validation_split": Rule((str,)),
        "format": _TEXT_OR_NULL,
        "num_train": _POSITIVE,
        "num_validation": _POSITIVE,
        "seed": _INTEGER,
        "max_train_samples": Rule((int, type(None))),
        "max_eval_samples": Rule((int, type(None))),
        "skip_invalid": Rule((bool,)),
    },
    "preprocess": PREPROCESS_RULES,
    "postprocess": {
        "n_best_size": _POSITIVE,
        "max_answer_length": _POSITIVE,
        "null_score_diff_threshold": Rule((float, str)),
        "calibrate": Rule((bool,)),
    },
    "metric": METRIC_RULES,
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


def check_unshaped(fields: Mapping[str, Any], name_or_path: str, what: str) -> None:
    """Refuse fields that would shape a new model, where a model is loaded.

    Args:
        fields: Fields of the configuration of a model; ``None`` for those that are not set.
        name_or_path: The model that is loaded.
        what: The model that would be made otherwise.

    Raises:
        InputError: Names them.
    """
    shaping = [f"`model.{name}={value}`" for name, value in fields.items() if value is not None]
    if shaping:
        raise InputError(
            f"{', '.join(shaping)} would shape a new {what}, but `model.name_or_path={name_or_path}` loads a model as "
            "it is; set the one or the other, and null for the rest."
        )
