"""``TrainingArguments.accelerator_config``, read without accelerate."""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from transformers.trainer_pt_utils import AcceleratorConfig

from portico.errors import InputError

_SHARING = {"split_batches": False, "dispatch_batches": None, "even_batches": True, "use_seedable_sampler": True}
_FIELDS = {**_SHARING, "non_blocking": False, "gradient_accumulation_kwargs": None, "use_configured_state": False}
_ACCUMULATION = ("num_steps", "sync_each_batch", "adjust_scheduler", "sync_with_dataloader")


def accelerator_settings(args: Any) -> dict[str, Any]:
    """Return every field of ``accelerator_config``, with the defaults of those that were left out.

    Args:
        args: Training arguments; the field may hold an ``AcceleratorConfig``, a dict, the path of a JSON file or
            nothing.

    Raises:
        InputError: If there is no such field.
    """
    config = args.accelerator_config
    if is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
    elif isinstance(config, str):
        config = json.loads(Path(config).read_text(encoding="utf-8"))
    given = dict(config or {})
    unknown = sorted(set(given) - set(_FIELDS))
    if unknown:
        raise InputError(
            f"`accelerator_config` has no field {', '.join(unknown)}; it has {', '.join(_FIELDS)}: set those alone."
        )
    return {**_FIELDS, **given}


def sharing_options(args: Any) -> dict[str, Any]:
    """Return the options of ``BatchSharing`` that ``accelerator_config`` gives."""
    settings = accelerator_settings(args)
    options = {name: settings[name] for name in ("split_batches", "dispatch_batches", "even_batches", "non_blocking")}
    return {**options, "seeded_order": settings["use_seedable_sampler"], "data_seed": args.data_seed}


def syncs_each_batch(args: Any) -> bool:
    """Tell whether gradients are averaged after each batch of an accumulation window."""
    return bool((accelerator_settings(args)["gradient_accumulation_kwargs"] or {}).get("sync_each_batch", False))


def forget_unused_state(config: Any) -> None:
    """Drop ``use_configured_state`` of an ``AcceleratorConfig`` where it is off, so that it is not saved.

    Transformers drops it when it sets up the processes; arguments are written alike by both then.
    """
    if isinstance(config, AcceleratorConfig) and not config.use_configured_state:
        config.pop("use_configured_state")


def apply_accelerator_settings(args: Any) -> None:
    """Take over the accumulation steps that ``accelerator_config`` gives; refuse what makes no sense here.

    Raises:
        InputError: If the settings contradict the training arguments, or ask for accelerate's own state.
    """
    settings = accelerator_settings(args)
    if settings["use_configured_state"]:
        raise InputError(
            "`accelerator_config={'use_configured_state': True}` takes over the processes of an `Accelerator` made "
            "before, but Lightning makes the processes of this run; leave it out, and set `strategy`, `devices` and "
            "`accelerator` in `portico.TrainingArguments`."
        )
    accumulation = settings["gradient_accumulation_kwargs"] or {}
    _check_accumulation(accumulation, args)
    if "num_steps" in accumulation:
        args.gradient_accumulation_steps = accumulation["num_steps"]


def _check_accumulation(accumulation: Mapping[str, Any], args: Any) -> None:
    unknown = sorted(set(accumulation) - set(_ACCUMULATION))
    if unknown:
        raise InputError(
            f"`gradient_accumulation_kwargs` in `accelerator_config` has no field {', '.join(unknown)}; it has "
            f"{', '.join(_ACCUMULATION)}: set those alone."
        )
    if args.gradient_accumulation_steps not in (1, accumulation.get("num_steps", args.gradient_accumulation_steps)):
        raise InputError(
            f"Both `gradient_accumulation_steps={args.gradient_accumulation_steps}` and `num_steps="
            f"{accumulation['num_steps']}` in `accelerator_config` say how many batches a step accumulates; set one "
            "of them alone."
        )
