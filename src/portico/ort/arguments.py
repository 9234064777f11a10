"""Values of ``ORTTrainingArguments`` that mean nothing."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any

from portico.arguments import TrainingArguments
from portico.errors import InputError
from portico.hf_compat import ExplicitEnum, OptimizerNames
from portico.ort.settings import SessionSettings
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


class ORTOptimizerNames(ExplicitEnum):
    """Optimizers beside those of transformers."""

    ADAMW_ORT_FUSED = "adamw_ort_fused"


@dataclass
class ORTTrainingArguments(TrainingArguments):
    """Arguments of :class:`~portico.ort.trainer.ORTTrainer`.

    Args:
        accelerator: ``"ort"`` by default.
        strategy: ``"ort"`` by default; ``"ort_ddp"`` with several devices.
        optim: As of transformers, or ``"adamw_ort_fused"``, whose step runs in ONNX Runtime.
        use_module_with_loss: The loss is a part of the graph even where it is that of ``compute_loss_func`` or of
            ``label_smoothing_factor``; one that the model computes always is.
        save_onnx: Write the trained model as an ONNX file into ``output_dir``, after training and beside a model that
            is saved there.
        onnx_prefix: Name of that file, without ``.onnx``; ``"model"`` by default.
        onnx_log_level: Least severity that ONNX Runtime prints: ``"VERBOSE"``, ``"INFO"``, ``"WARNING"``,
            ``"ERROR"`` or ``"FATAL"``.
        onnx_cache_dir: Folder in which prepared graphs are kept, so that a second start of the same run builds none,
            or ``"off"``; by default that of the environment variable ``PORTICO_ORT_CACHE_DIR``, or else
            ``~/.cache/portico/onnxruntime``.
        onnx_profile: Measure the time in each kind of operator; the report shows it.
        evaluate_in_ort: Evaluate and predict in ONNX Runtime too; otherwise in torch.
        strict: Refuse a model of which a part would run in torch.
    """

    accelerator: str | None = field(default="ort", metadata={"help": "Lightning accelerator."})
    strategy: str | None = field(default="ort", metadata={"help": "Lightning strategy."})
    use_module_with_loss: bool = field(default=False, metadata={"help": "Compute the loss in the graph."})
    save_onnx: bool = field(default=False, metadata={"help": "Write the trained model as an ONNX file."})
    onnx_prefix: str | None = field(default=None, metadata={"help": "Name of the ONNX file, without its ending."})
    onnx_log_level: str = field(
        default="WARNING", metadata={"help": "Least severity that is printed.", "choices": list(LOG_LEVELS)}
    )
    onnx_cache_dir: str | None = field(default=None, metadata={"help": "Folder of prepared graphs, or 'off'."})
    onnx_profile: bool = field(default=False, metadata={"help": "Measure the time in each kind of operator."})
    evaluate_in_ort: bool = field(default=True, metadata={"help": "Evaluate in ONNX Runtime too."})
    strict: bool = field(default=False, metadata={"help": "Refuse a model of which a part would run in torch."})

    def __post_init__(self) -> None:
        """Check and normalise, as ``transformers`` does, and let it pass over the optimizer that it does not know.

        Raises:
            InputError: As :func:`~portico.ort.arguments.check_arguments`.
        """
        check_optimizer(self.optim, ORTOptimizerNames)
        fused = getattr(self.optim, "value", self.optim) == ORTOptimizerNames.ADAMW_ORT_FUSED.value
        if fused:
            self.optim = OptimizerNames.ADAMW_TORCH
        super().__post_init__()
        if fused:
            self.optim = ORTOptimizerNames.ADAMW_ORT_FUSED
        check_arguments(self)

    @property
    def session_settings(self) -> SessionSettings:
        """How ONNX Runtime runs the graphs."""
        return SessionSettings(
            log_level=LOG_LEVELS.index(self.onnx_log_level.upper()),
            cache_dir=self.onnx_cache_dir,
            profile=self.onnx_profile,
        )


def uses_fused_adamw(args: Any) -> bool:
    """Return whether ``args`` ask for the optimizer whose step runs in ONNX Runtime."""
    return args.optim is ORTOptimizerNames.ADAMW_ORT_FUSED
