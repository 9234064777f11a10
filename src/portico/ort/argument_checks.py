"""Values of ``ORTTrainingArguments`` that mean nothing."""

from enum import Enum
from pathlib import PurePath
from typing import Any

from transformers.training_args import OptimizerNames

from portico.errors import InputError
from portico.settings import Rule

LOG_LEVELS = ("VERBOSE", "INFO", "WARNING", "ERROR", "FATAL")
_TRUTH, _TEXT = Rule((bool,)), Rule((str, type(None)))
_RULES = {
    "use_module_with_loss": _TRUTH,
    "save_onnx": _TRUTH,
    "onnx_prefix": _TEXT,
    "onnx_cache_dir": _TEXT,
    "onnx_profile": _TRUTH,
    "evaluate_in_ort": _TRUTH,
    "strict": _TRUTH,
}


def check_arguments(args: Any) -> None:
    """Refuse values that mean nothing in ONNX Runtime.

    Args:
        args: ``ORTTrainingArguments`` as they were given.

    Raises:
        InputError: Names the argument, and what it may be.
    """
    for name, rule in _RULES.items():
        if not rule.allows(getattr(args, name)):
            raise InputError(f"`{name}={getattr(args, name)!r}` cannot be used; set it to {rule}.")
    if str(args.onnx_log_level).upper() not in LOG_LEVELS:
        raise InputError(
            f"`onnx_log_level={args.onnx_log_level!r}` is no level; set it to one of {', '.join(LOG_LEVELS)}."
        )
    prefix = args.onnx_prefix
    if prefix is not None and (PurePath(prefix).name != prefix or prefix.endswith(".onnx")):
        raise InputError(
            f"`onnx_prefix={prefix!r}` is no name for a file; give one without folder and without `.onnx`, such as "
            "'model'."
        )
    if args.optim_args and args.optim == "adamw_ort_fused":
        raise InputError(
            f"`optim_args={args.optim_args!r}` changes nothing for `optim='adamw_ort_fused'`, which takes "
            "`learning_rate`, `adam_beta1`, `adam_beta2`, `adam_epsilon` and `weight_decay`; leave it out."
        )
    if args.torch_compile:
        raise InputError(
            "`torch_compile` and its options compile for another backend than ONNX Runtime, for which the model is "
            "compiled anyway; leave them out."
        )


def check_optimizer(optim: Any, own: type[Enum]) -> None:
    """Refuse the name of an optimizer that is neither transformers' nor ours.

    Args:
        optim: Name, or member of an enumeration.
        own: The names of ours.

    Raises:
        InputError: Names those there are.
    """
    names = [member.value for kind in (own, OptimizerNames) for member in kind]
    if getattr(optim, "value", optim) not in names:
        raise InputError(f"`optim={optim!r}` is no optimizer; set it to one of {', '.join(names)}.")
