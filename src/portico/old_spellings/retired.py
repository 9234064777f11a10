"""Training arguments of ``transformers`` 4 that another one expresses now, or that mean nothing any more."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.old_spellings.warning import warn_of_old_spelling


def _retired(default: Any) -> Any:
    return field(default=default, repr=False, metadata={"help": "Deprecated, of transformers 4."})


@dataclass
class RetiredArguments:
    """The retired arguments, which keep what they are given: scripts for ``transformers`` 4 read them back.

    Mixed in before the class of ``transformers``, whose own checks must see what the retired ones become.
    """

    adafactor: bool = _retired(False)
    dispatch_batches: bool | None = _retired(None)
    fp16_backend: str = _retired("auto")
    fp16_opt_level: str = _retired("O1")
    fsdp_min_num_params: int = _retired(0)
    fsdp_transformer_layer_cls_to_wrap: str | None = _retired(None)
    group_by_length: bool = _retired(False)
    half_precision_backend: str = _retired("auto")
    include_inputs_for_metrics: bool = _retired(False)
    include_tokens_per_second: bool = _retired(False)
    jit_mode_eval: bool = _retired(False)
    logging_dir: str | None = _retired(None)
    mp_parameters: str = _retired("")
    overwrite_output_dir: bool = _retired(False)
    past_index: int = _retired(-1)
    push_to_hub_organization: str | None = _retired(None)
    ray_scope: str | None = _retired("last")
    save_safetensors: bool = _retired(True)
    sharded_ddp: str = _retired("")
    split_batches: bool | None = _retired(None)
    tpu_metrics_debug: bool = _retired(False)
    tpu_num_cores: int | None = _retired(None)
    use_ipex: bool = _retired(False)
    use_legacy_prediction_loop: bool = _retired(False)
    use_mps_device: bool = _retired(False)

    def __post_init__(self) -> None:
        for one in dataclasses.fields(RetiredArguments):
            value = getattr(self, one.name)
            if value != one.default and value is not None:
                _take(self, one.name, value)
        super().__post_init__()  # type: ignore[misc]


@dataclass(frozen=True)
class _Successor:
    """What expresses a retired argument now.

    Args:
        name: The present argument.
        value: Makes its value from the retired one's, its own value so far, and all arguments.
        extends: Whether the value so far is kept in the new one; else only its default gives way.
    """

    name: str
    value: Callable[[Any, Any, Any], Any]
    extends: bool = False


def _entry(key: str) -> Callable[[Any, Any, Any], Any]:
    return lambda retired, current, args: {key: retired, **_as_dict(current)}


def _as_dict(config: Any) -> dict[str, Any]:
    if isinstance(config, str):
        raise InputError(
            f"A retired argument belongs into the configuration that {config!r} names; write it there instead."
        )
    return dict(config.to_dict() if hasattr(config, "to_dict") else config or {})


_SUCCESSORS: Mapping[str, _Successor] = {
    "adafactor": _Successor("optim", lambda *_: "adafactor"),
    "dispatch_batches": _Successor("accelerator_config", _entry("dispatch_batches"), extends=True),
    "fsdp_min_num_params": _Successor("fsdp_config", _entry("min_num_params"), extends=True),
    "fsdp_transformer_layer_cls_to_wrap": _Successor(
        "fsdp_config", _entry("transformer_layer_cls_to_wrap"), extends=True
    ),
    "group_by_length": _Successor("train_sampling_strategy", lambda *_: "group_by_length"),
    "include_inputs_for_metrics": _Successor(
        "include_for_metrics", lambda retired, current, args: [*current, *{"inputs"}.difference(current)], extends=True
    ),
    "push_to_hub_organization": _Successor(
        "hub_model_id",
        lambda owner, current, args: f"{owner}/{Path(current or args.output_dir).name}",
        extends=True,
    ),
    "split_batches": _Successor("accelerator_config", _entry("split_batches"), extends=True),
    "tpu_metrics_debug": _Successor(
        "debug", lambda retired, current, args: f"{current or ''} tpu_metrics_debug".strip(), extends=True
    ),
}

_HONOURED: Mapping[str, str] = {
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    "use_legacy_prediction_loop": "override `evaluation_loop` instead of `prediction_loop`",
}

_WITHOUT_EFFECT: Mapping[str, str] = {
    "fp16_backend": "Lightning casts; its `precision` chooses how",
    "fp16_opt_level": "it belonged to apex; `precision` chooses how much is cast",
    "half_precision_backend": "Lightning casts; its `precision` chooses how",
    "include_tokens_per_second": "use `include_num_input_tokens_seen`, which also logs tokens per second",
    "jit_mode_eval": "use `torch_compile`",
    "mp_parameters": "it belonged to SageMaker's launcher",
    "overwrite_output_dir": "a run never deletes what its output folder holds",
    "ray_scope": "set the environment variable RAY_SCOPE",
    "save_safetensors": "weights are always saved as safetensors",
    "tpu_num_cores": "use `accelerator` and `devices`",
    "use_ipex": "use `torch_compile`",
    "use_mps_device": "`mps` is used where it is available",
}

_REFUSED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "fp16_backend": (lambda value: value == "apex", "set `fp16=True` or `precision`, which torch runs without apex"),
    "half_precision_backend": (
        lambda value: value == "apex",
        "set `fp16=True` or `precision`, which torch runs without apex",
    ),
    "past_index": (lambda value: True, "carry states between batches in a `training_step` of your own"),
    "sharded_ddp": (bool, "set `strategy='fsdp'`"),
}


def _take(args: Any, name: str, value: Any) -> None:
    """Act on a retired argument that was set, with one warning.

    Raises:
        InputError: If it asks for what does not exist any more, or contradicts the argument that expresses it now.
    """
    if name in _REFUSED and _REFUSED[name][0](value):
        raise InputError(f"`{name}={value!r}` does not exist any more; {_REFUSED[name][1]} instead.")
    if name in _SUCCESSORS:
        _hand_on(args, name, value)
    elif name in _HONOURED:
        warn_of_old_spelling(f"`{name}` is retired and still works; {_HONOURED[name]} instead.")
    else:
        warn_of_old_spelling(f"`{name}` has no effect any more: {_WITHOUT_EFFECT[name]}.")


def _hand_on(args: Any, name: str, value: Any) -> None:
    successor = _SUCCESSORS[name]
    current = getattr(args, successor.name)
    new = successor.value(value, current, args)
    default = next(one.default for one in dataclasses.fields(args) if one.name == successor.name)
    if not successor.extends and current not in (default, new):
        raise InputError(
            f"`{successor.name}={current!r}` and `{name}={value!r}` say different things; give `{successor.name}` "
            "alone."
        )
    setattr(args, successor.name, new)
    warn_of_old_spelling(f"`{name}` is expressed by `{successor.name}={new!r}` now; the older name still works.")


def retired_treatments() -> dict[str, str]:
    """Return what becomes of each retired argument, by name: a clause for the documentation."""
    return {
        **{name: f"handed on to `{successor.name}`" for name, successor in _SUCCESSORS.items()},
        **{name: f"honoured (today: {instead})" for name, instead in _HONOURED.items()},
        **{name: f"refused; {instead} instead" for name, (_, instead) in _REFUSED.items()},
        # Of those that are refused too, one value is.
        **{name: f"none (announced): {why}" for name, why in _WITHOUT_EFFECT.items()},
    }
