"""The training arguments that say how processes share a run, read: ``accelerator_config`` and ``ddp_timeout``."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portico.compat.accelerate import difference_of_states, has_state
from portico.compat.transformers import AcceleratorConfig, HFTrainingArguments, logger
from portico.data.sharding import DataLoaderConfig
from portico.errors import InputError, InputFileNotFoundError, InputTypeError

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy

_LOADING = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking")
_ACCUMULATION = ("num_steps", "sync_each_batch", "adjust_scheduler", "sync_with_dataloader")


def accelerator_settings(args: HFTrainingArguments) -> dict[str, Any]:
    """Return every field of ``args.accelerator_config``, which is an object, a dict, a JSON file's path or None."""
    config = args.accelerator_config
    if is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
    given = read_settings("accelerator_config", config or {})
    defaults: dict[str, Any] = AcceleratorConfig().to_dict()
    _refuse_unknown("`accelerator_config`", given, defaults)
    return {**defaults, **given}


def read_settings(argument: str, settings: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that ``argument`` gives as a mapping or as the path of a JSON file."""
    if isinstance(settings, Mapping):
        return dict(settings)
    try:
        content = json.loads(Path(settings).read_text(encoding="utf-8"))
    except (OSError, TypeError, ValueError) as error:
        kinds = {FileNotFoundError: InputFileNotFoundError, TypeError: InputTypeError}
        kind = kinds.get(type(error), InputError)
        raise kind(f"`{argument}={settings!r}` cannot be read ({error}); give a dict or a JSON file.") from None
    if not isinstance(content, dict):
        raise InputError(
            f"`{argument}={settings!r}` holds a {type(content).__name__}; write an object of settings by their names."
        )
    return content


def read_number(args: HFTrainingArguments, name: str, unit: str) -> float:
    """Return an argument that only several processes read; a single process accepts any value, as in transformers."""
    value = getattr(args, name)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputTypeError(f"`{name}={value!r}` cannot be used; set it to a finite number of {unit}.")
    return number


def timeout_of(args: HFTrainingArguments) -> timedelta:
    """Return how long a process waits for the others in a collective operation."""
    return timedelta(seconds=read_number(args, "ddp_timeout", "seconds"))


def _refuse_unknown(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given).difference(known))
    if unknown:
        raise InputError(f"{where} has no field {', '.join(unknown)}; it has {', '.join(known)}: use only those.")


def dataloader_config(args: HFTrainingArguments) -> DataLoaderConfig:
    """Return how to prepare loaders, as ``accelerator_config`` says."""
    settings = accelerator_settings(args)
    corrected = {"eval_duplicates", "train_duplicates"}.intersection(getattr(args, "corrections", None) or ())
    loading = {name: settings[name] for name in _LOADING}
    return DataLoaderConfig(data_seed=args.data_seed, counts_streams=bool(corrected), **loading)


def refuse_missing_state() -> None:
    """Refuse to keep the state of an ``Accelerator`` if none was made before the arguments."""
    if not has_state():
        raise InputError(
            "`accelerator_config={'use_configured_state': True}` keeps the state of an `Accelerator` made before, but "
            "there is none; make one before the training arguments, or leave it out."
        )


def apply_accelerator_settings(args: HFTrainingArguments, strategy: "Callable[[], Strategy]") -> None:
    """Apply the accumulation steps in ``accelerator_config``; refuse settings that do not suit ``strategy``."""
    settings = accelerator_settings(args)
    accumulation = settings["gradient_accumulation_kwargs"] or {}
    if settings["use_configured_state"] and (difference := difference_of_states(strategy())):
        raise InputError(
            "`accelerator_config={'use_configured_state': True}` keeps the state of an `Accelerator` made before, but "
            f"{difference}, since Lightning places the run; leave it out, or set `strategy`, `devices`, `accelerator` "
            "and `precision` in `portico.TrainingArguments` so that both agree."
        )
    _refuse_unknown("`gradient_accumulation_kwargs` in `accelerator_config`", accumulation, _ACCUMULATION)
    if args.gradient_accumulation_steps not in (1, accumulation.get("num_steps", args.gradient_accumulation_steps)):
        raise InputError(
            "The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1 in the "
            "passed `TrainingArguments`. If using the passed `AcceleratorConfig` is desired, do not set the "
            f"`TrainingArguments` `gradient_accumulation_steps`. They are {accumulation['num_steps']} and "
            f"{args.gradient_accumulation_steps}."
        )
    if settings["non_blocking"] and not args.dataloader_pin_memory:
        logger.warning(
            "`non_blocking` is enabled but `dataloader_pin_memory` is not. For the best performance, it's recommended "
            "to enable both."
        )
    if "num_steps" in accumulation:
        args.gradient_accumulation_steps = accumulation["num_steps"]
