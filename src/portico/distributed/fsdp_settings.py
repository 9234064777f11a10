"""``fsdp`` and ``fsdp_config`` of the training arguments, as options of Lightning's ``FSDPStrategy``."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.fsdp import BackwardPrefetch
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from portico.errors import InputError

_SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard")
_SWITCHES = ("forward_prefetch", "limit_all_gathers", "sync_module_states", "use_orig_params")
_STATE_DICTS = {"FULL_STATE_DICT": "full", "SHARDED_STATE_DICT": "sharded"}
_KNOWN = {
    *_SWITCHES,
    "activation_checkpointing",
    "auto_wrap_policy",
    "backward_prefetch",
    "cpu_offload",
    "min_num_params",
    "reshard_after_forward",
    "state_dict_type",
    "transformer_layer_cls_to_wrap",
    "version",
}
# Filled in by transformers; they ask for something only when they are true.
_OFF = ("cpu_ram_efficient_loading", "xla", "xla_fsdp_grad_ckpt", "xla_fsdp_v2")


def fsdp_options(fsdp: Any, fsdp_config: Any, model: nn.Module | None) -> dict[str, Any]:
    """Return options of ``FSDPStrategy``.

    Args:
        fsdp: ``True``, or the older words (``"full_shard auto_wrap offload"``), also in a list.
        fsdp_config: Settings, the path of a JSON file with them, or nothing.
        model: Where the layers to wrap are looked up.

    Raises:
        InputError: If a setting has no counterpart in Lightning.
    """
    config = _normalised(fsdp, fsdp_config)
    unknown = sorted(name for name in config if name not in _KNOWN and (name not in _OFF or _is_on(config[name])))
    if unknown:
        raise InputError(
            f"`fsdp_config` asks for {', '.join(unknown)}, which Lightning's FSDPStrategy has no setting for; leave "
            f"it out (known are {', '.join(sorted(_KNOWN))}), or pass a strategy of your own as `strategy`."
        )
    options: dict[str, Any] = {
        "sharding_strategy": _sharding(config.get("reshard_after_forward", True)).upper(),
        "cpu_offload": _is_on(config.get("cpu_offload", False)),
        "state_dict_type": _STATE_DICTS[config.get("state_dict_type", "FULL_STATE_DICT")],
    }
    layers = _layers_to_wrap(config, model)
    policy = _wrap_policy(config, layers)
    if policy is not None:
        options["auto_wrap_policy"] = policy
    if _is_on(config.get("activation_checkpointing", False)):
        options["activation_checkpointing_policy"] = layers
    options |= {name: _is_on(config[name]) for name in _SWITCHES if name in config}
    prefetch = str(config.get("backward_prefetch", "no_prefetch")).upper()
    if prefetch != "NO_PREFETCH":
        options["backward_prefetch"] = BackwardPrefetch[prefetch]
    return options


def _normalised(fsdp: Any, fsdp_config: Any) -> dict[str, Any]:
    if isinstance(fsdp_config, str):
        fsdp_config = json.loads(Path(fsdp_config).read_text(encoding="utf-8"))
    config = {name.removeprefix("fsdp_"): value for name, value in (fsdp_config or {}).items()}
    words = fsdp.split() if isinstance(fsdp, str) else [] if fsdp is True else list(fsdp)
    for word in (str(getattr(word, "value", word)) for word in words):
        if word in _SHARDING:
            config.setdefault("reshard_after_forward", word)
        elif word == "offload":
            config.setdefault("cpu_offload", True)
        elif word not in ("auto_wrap", "true", "True"):
            raise InputError(
                f"`fsdp={fsdp!r}` has the word {word!r}; use {', '.join(_SHARDING)}, offload and auto_wrap, or "
                "`fsdp=True` with `fsdp_config`."
            )
    return config


def _sharding(value: Any) -> str:
    if isinstance(value, bool) or str(value).lower() in ("true", "false"):
        return "full_shard" if _is_on(value) else "shard_grad_op"
    if str(value).lower() not in _SHARDING:
        raise InputError(
            f"`reshard_after_forward={value!r}` in `fsdp_config` is not known; use true, false or one of "
            f"{', '.join(_SHARDING)}."
        )
    return str(value).lower()


def _layers_to_wrap(config: Mapping[str, Any], model: nn.Module | None) -> set[type[nn.Module]]:
    """Return the classes of the model's layers that ``fsdp_config`` names, or that the model says are not to split."""
    names = config.get("transformer_layer_cls_to_wrap") or getattr(model, "_no_split_modules", None) or []
    names = {names} if isinstance(names, str) else set(names)
    modules = model.modules() if model is not None else ()
    return {type(module) for module in modules if type(module).__name__ in names}


def _wrap_policy(config: Mapping[str, Any], layers: set[type[nn.Module]]) -> Any:
    kind = config.get("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    if kind == "SIZE_BASED_WRAP":
        return partial(size_based_auto_wrap_policy, min_num_params=int(config.get("min_num_params", 0)))
    if kind not in ("TRANSFORMER_BASED_WRAP", "NO_WRAP"):
        raise InputError(
            f"`auto_wrap_policy={kind!r}` in `fsdp_config` is not known; use 'TRANSFORMER_BASED_WRAP', "
            "'SIZE_BASED_WRAP' or 'NO_WRAP'."
        )
    return layers if layers and kind == "TRANSFORMER_BASED_WRAP" else None


def _is_on(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "on", "y", "t")
