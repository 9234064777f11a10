"""Training arguments that this version does not honour: refused, so that none is dropped in silence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers.debug_utils import DebugOption

from portico.errors import InputError

# They update weights inside backward, or keep some layers in more bits; both need a say in the training step.
_REFUSED_OPTIMIZERS = ("lomo", "8bit")


@dataclass(frozen=True)
class Refusal:
    """Why a field of the training arguments is refused.

    Args:
        is_set: Tells from its value whether the field asks for anything.
        instead: What to set, one clause.
    """

    is_set: Callable[[Any], bool]
    instead: str


REFUSALS = {
    "auto_find_batch_size": Refusal(bool, "set `per_device_train_batch_size` to what fits the memory"),
    "bf16_full_eval": Refusal(bool, "leave it out, or evaluate a model that was loaded with `dtype=torch.bfloat16`"),
    "debug": Refusal(lambda options: DebugOption.TPU_METRICS_DEBUG in options, "leave 'tpu_metrics_debug' out"),
    "enable_jit_checkpoint": Refusal(bool, "set `save_strategy` and `save_steps` to save often enough"),
    "fp16_full_eval": Refusal(bool, "leave it out, or evaluate a model that was loaded with `dtype=torch.float16`"),
    "optim": Refusal(
        lambda name: any(refused in name.value for refused in _REFUSED_OPTIMIZERS), "choose another, as 'adamw_torch'"
    ),
    "push_to_hub": Refusal(bool, "leave it out, and upload `output_dir` after training"),
    "torch_compile": Refusal(bool, "leave it out, or give the trainer a model that went through `torch.compile`"),
    "use_liger_kernel": Refusal(bool, "leave it out, or patch the model with liger-kernel before giving it"),
}


def refuse_unsupported(args: Any) -> None:
    """Refuse training arguments that ask for what this version does not do.

    Raises:
        InputError: Names the field, its value and what to set instead.
    """
    for name, refusal in REFUSALS.items():
        value = getattr(args, name, None)
        if value is not None and refusal.is_set(value):
            shown = getattr(value, "value", value)
            raise InputError(f"`{name}={shown!r}` is not supported by this version of portico; {refusal.instead}.")
