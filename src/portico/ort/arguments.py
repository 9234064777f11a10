"""``ORTTrainingArguments``: Hugging Face's training arguments plus ONNX Runtime's."""

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from portico.arguments import TrainingArguments
from portico.compat.transformers import OptimizerNames
from portico.errors import InputError
from portico.ort.settings import SessionSettings
from portico.rules import Rule, check_values
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

LOG_LEVELS = ("VERBOSE", "INFO", "WARNING", "ERROR", "FATAL")
_RULES = {
    **dict.fromkeys(("use_module_with_loss", "onnx_profile", "evaluate_in_ort", "strict"), Rule((bool,))),
    "save_onnx": Rule((bool,), choices=("standard",)),
    **dict.fromkeys(("onnx_prefix", "onnx_cache_dir"), Rule((str, type(None)))),
}


class ORTOptimizerNames(StrEnum):
    """Optimizers in addition to transformers'."""

    ADAMW_ORT_FUSED = "adamw_ort_fused"


_OPTIMIZERS = [member.value for kind in (ORTOptimizerNames, OptimizerNames) for member in kind]


class _StoreBooleanOrStandard(argparse.Action):
    """Accepts ``"standard"`` too where ``HfArgumentParser`` reads a Boolean."""

    def __init__(self, **options: Any) -> None:
        read = options.pop("type")
        super().__init__(type=lambda text: text if text == "standard" else read(text), **options)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)


@data_only
@dataclass
class ORTTrainingArguments(TrainingArguments):
    """Arguments of :class:`~portico.ort.trainer.ORTTrainer`.

    Args:
        accelerator: ``"ort"`` by default.
        strategy: ``"ort"`` by default; ``"ort_ddp"`` with several devices.
        optim: One of transformers' optimizers, or ``"adamw_ort_fused"``, whose step runs in ONNX Runtime.
        use_module_with_loss: Include the loss of ``compute_loss_func`` or of ``label_smoothing_factor`` in the graph;
            a loss that the model computes always is.
        save_onnx: Write the trained model as an ONNX file into ``output_dir`` after training. It may contain
            operators of ONNX Runtime (domain ``com.microsoft``); with ``"standard"`` it contains only ONNX operators.
        onnx_prefix: Name of that file, without ``.onnx``; ``"model"`` by default.
        onnx_log_level: Least severity that ONNX Runtime prints: ``"VERBOSE"``, ``"INFO"``, ``"WARNING"``,
            ``"ERROR"`` or ``"FATAL"``.
        onnx_cache_dir: Folder that caches optimised graphs, so that the next start of the same run builds none, or
            ``"off"``; by default the environment variable ``PORTICO_ORT_CACHE_DIR``, or else
            ``~/.cache/portico/onnxruntime``.
        onnx_profile: Measure the time in each kind of operator, for the report.
        evaluate_in_ort: Evaluate and predict in ONNX Runtime too; otherwise in torch.
        strict: Refuse a model of which a part would run in torch.
    """

    accelerator: str | None = field(default="ort", metadata={"help": "Lightning accelerator."})
    strategy: str | None = field(default="ort", metadata={"help": "Lightning strategy."})
    # `HfArgumentParser` would take the choices from transformers' type, an enumeration that cannot be extended.
    optim: str = field(default=TrainingArguments.optim, metadata={"help": "Optimizer.", "choices": _OPTIMIZERS})
    use_module_with_loss: bool = field(default=False, metadata={"help": "Compute the loss in the graph."})
    save_onnx: bool | str = field(
        default=False,
        metadata={"help": "Write the model as an ONNX file: true, or 'standard'.", "action": _StoreBooleanOrStandard},
    )
    onnx_prefix: str | None = field(default=None, metadata={"help": "Name of the ONNX file, without its ending."})
    onnx_log_level: str = field(
        default="WARNING", metadata={"help": "Least severity that is printed.", "choices": list(LOG_LEVELS)}
    )
    onnx_cache_dir: str | None = field(default=None, metadata={"help": "Folder of prepared graphs, or 'off'."})
    onnx_profile: bool = field(default=False, metadata={"help": "Measure the time in each kind of operator."})
    evaluate_in_ort: bool = field(default=True, metadata={"help": "Evaluate in ONNX Runtime too."})
    strict: bool = field(default=False, metadata={"help": "Refuse a model of which a part would run in torch."})

    def __post_init__(self) -> None:
        """Check and normalise the values.

        Raises:
            InputError: Names the argument and the values allowed.
        """
        optim = getattr(self.optim, "value", self.optim)
        if optim not in _OPTIMIZERS:
            raise InputError(f"`optim={self.optim!r}` is unknown; set it to one of {', '.join(_OPTIMIZERS)}.")
        is_fused = optim == ORTOptimizerNames.ADAMW_ORT_FUSED.value
        if is_fused:
            # Hidden from transformers' own check, which would refuse the name.
            self.optim = OptimizerNames.ADAMW_TORCH
        super().__post_init__()
        if is_fused:
            self.optim = ORTOptimizerNames.ADAMW_ORT_FUSED
        check_values("", {name: getattr(self, name) for name in _RULES}, _RULES)
        if str(self.onnx_log_level).upper() not in LOG_LEVELS:
            raise InputError(
                f"`onnx_log_level={self.onnx_log_level!r}` is unknown; set it to one of {', '.join(LOG_LEVELS)}."
            )
        prefix = self.onnx_prefix
        if prefix is not None and (PurePath(prefix).name != prefix or prefix.endswith(".onnx")):
            raise InputError(
                f"`onnx_prefix={prefix!r}` is not a plain file name; set it without folder and without `.onnx`, such "
                "as 'model'."
            )
        if self.optim_args and is_fused:
            logger.warning(
                "`optim_args=%r` has no effect on `optim='adamw_ort_fused'`, which takes `learning_rate`, "
                "`adam_beta1`, `adam_beta2`, `adam_epsilon` and `weight_decay`; leave it out.",
                self.optim_args,
            )
        if self.torch_compile:
            logger.warning(
                "`torch_compile` and its options have no effect: the model is compiled for ONNX Runtime; leave them "
                "out."
            )
            self.torch_compile = False
            self.torch_compile_backend = self.torch_compile_mode = None

    @property
    def session_settings(self) -> SessionSettings:
        """How ONNX Runtime runs the graphs."""
        return SessionSettings(
            log_level=LOG_LEVELS.index(self.onnx_log_level.upper()),
            cache_dir=self.onnx_cache_dir,
            profile=self.onnx_profile,
        )
