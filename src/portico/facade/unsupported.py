"""Values of training arguments that this version does not honour: refused, so that none is dropped in silence."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers.debug_utils import DebugOption

from portico.errors import InputError


@dataclass(frozen=True)
class Refusal:
    """Why a value of a training argument is refused.

    Args:
        is_set: Tells from its value whether the field asks for anything.
        instead: What to set, one clause.
        when: Which values are refused, for the documentation.
    """

    is_set: Callable[[Any], bool]
    instead: str
    when: str = "when set"


REFUSALS = {
    "debug": Refusal(
        lambda options: DebugOption.TPU_METRICS_DEBUG in options,
        "leave 'tpu_metrics_debug' out",
        "with 'tpu_metrics_debug'",
    ),
}


def refuse_unsupported(args: Any) -> None:
    """Refuse training arguments that ask for what this version does not do, or that are none of a field's choices.

    Raises:
        InputError: Names the field, its value and what to set instead.
    """
    for field in dataclasses.fields(args):
        choices, value = field.metadata.get("choices"), getattr(args, field.name)
        if choices is not None and value is not None and value not in choices:
            raise InputError(
                f"`{field.name}={value!r}` is no choice; set it to one of {', '.join(map(repr, choices))}."
            )
    for name, refusal in REFUSALS.items():
        value = getattr(args, name, None)
        if value is not None and refusal.is_set(value):
            shown = getattr(value, "value", value)
            raise InputError(f"`{name}={shown!r}` is not supported by this version of portico; {refusal.instead}.")
