"""Lightning strategies behind the training arguments: data parallel as in transformers, FSDP, DeepSpeed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel
from typing_extensions import override

from portico.distributed.accelerator import accelerator_settings
from portico.errors import InputError
from portico.lightning_compat import wrap_in_ddp

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments

_START_METHODS = {"ddp": "popen", "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}
# Training arguments by the option of `DistributedDataParallel` that they are.
_ARGUMENTS = {
    "bucket_cap_mb": "ddp_bucket_cap_mb",
    "broadcast_buffers": "ddp_broadcast_buffers",
    "static_graph": "ddp_static_graph",
}


class ModelDDPStrategy(DDPStrategy):
    """Lightning's ``DDPStrategy`` with ``DistributedDataParallel`` around the user's model, not the LightningModule.

    So an override of ``training_step`` gets the same model as under ``transformers.Trainer``: with ``model.module``,
    ``model.no_sync()``, and gradients averaged by every backward pass, including a raw ``loss.backward()``.
    Evaluations run the bare model. With ``sync_each_batch`` gradients are averaged after each batch of an accumulation
    window, not only after the last.
    """

    def __init__(self, *, sync_each_batch: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.sync_each_batch = sync_each_batch
        self.wrapped_model: DistributedDataParallel | None = None

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn is TrainerFn.FITTING:
            super().setup(trainer)
            return
        # For evaluations Lightning would overwrite each process's model with the first one's (`_sync_module_states`),
        # where a step of the user's may have let them drift.
        assert self.accelerator is not None
        assert self.model is not None
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        self.setup_precision_plugin()

    @override
    def configure_ddp(self) -> None:
        module: Any = self.lightning_module
        self.wrapped_model = wrap_in_ddp(self, module.model)
        module.set_wrapped_model(self.wrapped_model)

    @override
    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Do not average gradients before the last batch of the window, unless ``sync_each_batch`` is set."""
        module: Any = self.lightning_module
        # Lightning does not know that the last window of an epoch may be short.
        syncs = self.sync_each_batch or module.closes_window
        with nullcontext() if self.wrapped_model is None or syncs else self.wrapped_model.no_sync():
            yield

    @override
    def teardown(self) -> None:
        self.wrapped_model = None
        super().teardown()


def ddp_strategy(name: str, args: "TrainingArguments", model: nn.Module | None = None) -> ModelDDPStrategy | None:
    """Return the data-parallel strategy that Lightning calls ``name``, or ``None`` for a name of another kind.

    The name may have Lightning's ending ``"_find_unused_parameters_true"`` or ``"..._false"``; the ``ddp_*`` arguments
    become options.
    """
    kind, _, unused = name.partition("_find_unused_parameters_")
    if kind not in _START_METHODS:
        return None
    find_unused = args.ddp_find_unused_parameters
    if find_unused is None:
        find_unused = unused == "true" if unused else not _recomputes_activations(args, model)
    given = {option: getattr(args, field) for option, field in _ARGUMENTS.items()}
    accumulation = accelerator_settings(args)["gradient_accumulation_kwargs"] or {}
    return ModelDDPStrategy(
        sync_each_batch=bool(accumulation.get("sync_each_batch", False)),
        start_method=_START_METHODS[kind],
        process_group_backend=args.ddp_backend,
        timeout=timedelta(seconds=args.ddp_timeout),
        find_unused_parameters=find_unused,
        **{option: value for option, value in given.items() if value is not None},
    )


def refuse_ddp_arguments(strategy: Strategy, args: "TrainingArguments") -> None:
    """Raise ``InputError`` for ``ddp_*`` arguments next to a strategy object, which has its own options."""
    names = ("ddp_find_unused_parameters", *_ARGUMENTS.values())
    fields = [name for name in names if getattr(args, name) is not None]
    if fields and isinstance(strategy, DDPStrategy):
        raise InputError(
            f"`strategy` is a {type(strategy).__name__} object, which ignores {', '.join(fields)}; give the options "
            "to the strategy, or set `strategy='ddp'`."
        )


def _recomputes_activations(args: "TrainingArguments", model: nn.Module | None) -> bool:
    # `find_unused_parameters` breaks activation checkpointing (transformers 5.23 switches it off for the same reason);
    # only its models know whether they use it.
    if model is not None and not isinstance(model, PreTrainedModel):
        return False
    # Transformers has the newer name only since 5.23, and warns about the older one.
    newer = hasattr(model, "is_activation_checkpointing")
    name = "is_activation_checkpointing" if newer else "is_gradient_checkpointing"
    return bool(args.gradient_checkpointing or getattr(model, name, False))


_NAMES = {"fsdp": "FSDPStrategy", "deepspeed": "DeepSpeedStrategy"}
_SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard")
_SWITCHES = ("forward_prefetch", "limit_all_gathers", "sync_module_states", "use_orig_params")
_STATE_DICTS = {"FULL_STATE_DICT": "full", "SHARDED_STATE_DICT": "sharded"}
_KNOWN = {
    *(*_SWITCHES, "activation_checkpointing", "backward_prefetch", "cpu_offload", "reshard_after_forward"),
    *("auto_wrap_policy", "min_num_params", "transformer_layer_cls_to_wrap", "state_dict_type", "version"),
}
# Filled in by transformers with False; they matter only when true.
_OFF = ("cpu_ram_efficient_loading", "xla", "xla_fsdp_grad_ckpt", "xla_fsdp_v2")


def fsdp_options(
    fsdp: "bool | str | Sequence[str] | None", fsdp_config: "str | Mapping[str, Any] | None", model: nn.Module | None
) -> dict[str, Any]:
    """Return options of ``FSDPStrategy``; refuse settings without a counterpart there.

    ``fsdp`` may be the older words (``"full_shard auto_wrap offload"``), also in a list; ``fsdp_config`` may be the
    path of a JSON file. The layers to wrap are looked up in ``model``.
    """
    config = _normalised(fsdp, fsdp_config)
    unknown = sorted(name for name in config if name not in _KNOWN and (name not in _OFF or _is_on(config[name])))
    if unknown:
        raise InputError(
            f"`fsdp_config` sets {', '.join(unknown)}, which Lightning's FSDPStrategy does not have; leave it out "
            f"(known are {', '.join(sorted(_KNOWN))}), or pass a strategy object as `strategy`."
        )
    reshards = config.get("reshard_after_forward", True)
    sharding = {"true": "full_shard", "false": "shard_grad_op"}.get(str(reshards).lower(), str(reshards).lower())
    if sharding not in _SHARDING:
        raise InputError(
            f"`reshard_after_forward={reshards!r}` in `fsdp_config` is not known; use true, false or one of "
            f"{', '.join(_SHARDING)}."
        )
    options: dict[str, Any] = {
        "sharding_strategy": sharding.upper(),
        "cpu_offload": _is_on(config.get("cpu_offload", False)),
        "state_dict_type": _STATE_DICTS[config.get("state_dict_type", "FULL_STATE_DICT")],
    }
    layers = _layers_to_wrap(config, model)
    policy = config.get("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    if policy == "SIZE_BASED_WRAP":
        num_parameters = int(config.get("min_num_params", 0))
        options["auto_wrap_policy"] = partial(size_based_auto_wrap_policy, min_num_params=num_parameters)
    elif policy == "TRANSFORMER_BASED_WRAP" and layers:
        options["auto_wrap_policy"] = layers
    elif policy not in ("TRANSFORMER_BASED_WRAP", "NO_WRAP"):
        raise InputError(
            f"`auto_wrap_policy={policy!r}` in `fsdp_config` is not known; use 'TRANSFORMER_BASED_WRAP', "
            "'SIZE_BASED_WRAP' or 'NO_WRAP'."
        )
    if _is_on(config.get("activation_checkpointing", False)):
        options["activation_checkpointing_policy"] = layers
    options |= {name: _is_on(config[name]) for name in _SWITCHES if name in config}
    prefetch = str(config.get("backward_prefetch", "no_prefetch")).upper()
    if prefetch != "NO_PREFETCH":
        options["backward_prefetch"] = BackwardPrefetch[prefetch]
    return options


def _normalised(
    fsdp: "bool | str | Sequence[str] | None", fsdp_config: "str | Mapping[str, Any] | None"
) -> dict[str, Any]:
    given = _read(fsdp_config) if fsdp_config else {}
    config = {name.removeprefix("fsdp_"): value for name, value in given.items()}
    words = fsdp.split() if isinstance(fsdp, str) else [] if isinstance(fsdp, bool) else list(fsdp or ())
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


def _read(config: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that are given as a mapping or as the path of a JSON file."""
    return dict(config) if isinstance(config, Mapping) else json.loads(Path(config).read_text(encoding="utf-8"))


def _layers_to_wrap(config: Mapping[str, Any], model: nn.Module | None) -> set[type[nn.Module]]:
    """Return the layer classes that ``fsdp_config`` names, by default the model's ``_no_split_modules``."""
    names = config.get("transformer_layer_cls_to_wrap") or getattr(model, "_no_split_modules", None) or []
    names = {names} if isinstance(names, str) else set(names)
    modules = model.modules() if model is not None else ()
    return {type(module) for module in modules if type(module).__name__ in names}


def _is_on(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes", "on", "y", "t")


def sharded_strategy(args: "TrainingArguments", model: nn.Module | None = None) -> Strategy | None:
    """Return the strategy for ``fsdp`` or ``deepspeed``, ``None`` if neither is set; refuse what cannot run here."""
    if args.parallelism_config is not None:
        raise InputError(
            f"`parallelism_config={args.parallelism_config!r}` is accelerate's configuration of tensor and context "
            "parallelism; leave it out, and set Lightning's `strategy=ModelParallelStrategy(...)` with the same sizes."
        )
    names = [name for name in _NAMES if getattr(args, name)]
    if not names:
        return None
    if getattr(args, "strategy", None) is not None:
        names.append("strategy")
    if len(names) > 1:
        both = "Using --fsdp xxx together with --deepspeed is not possible, deactivate one of those flags. "
        raise InputError(
            f"{both if {'fsdp', 'deepspeed'} <= {*names} else ''}{' and '.join(f'`{name}`' for name in names)} each "
            "choose a strategy; set one of them."
        )
    accelerator = getattr(args, "accelerator", None) or ("cpu" if args.use_cpu else "auto")
    if not torch.cuda.is_available() or accelerator not in ("auto", "cuda", "gpu"):
        raise InputError(
            f"{'Using fsdp only works in distributed training. ' if names == ['fsdp'] else ''}"
            f"`{names[0]}` becomes Lightning's {_NAMES[names[0]]}, which needs CUDA devices, and the run is placed on "
            f"accelerator={accelerator!r} {'with' if torch.cuda.is_available() else 'without'} CUDA here; leave it "
            "out, or set `strategy='ddp'` to train on several processes without it."
        )
    timeout = timedelta(seconds=args.ddp_timeout)
    if names == ["fsdp"]:
        options = fsdp_options(args.fsdp, args.fsdp_config, model)
        return FSDPStrategy(process_group_backend=args.ddp_backend, timeout=timeout, **options)
    if find_spec("deepspeed") is None:
        raise InputError(
            "`deepspeed` becomes Lightning's DeepSpeedStrategy, but DeepSpeed is not installed; install it with "
            "`pip install deepspeed`, or set `strategy='fsdp'`."
        )
    return DeepSpeedStrategy(config=deepspeed_config(args), timeout=timeout)


def refuse_sharded_weights(strategy: "Strategy") -> None:
    """Raise ``InputError`` instead of writing Hugging Face's files from sharded weights."""
    if isinstance(strategy, DeepSpeedStrategy | FSDPStrategy):
        raise InputError(
            f"Under {type(strategy).__name__} each process has only a part of the weights, which are not written as "
            "Hugging Face's files; set `save_strategy='no'`, and save with Lightning's `ModelCheckpoint` in "
            "`lightning_callbacks` or with `trainer.lightning_trainer.save_checkpoint(...)`."
        )


def refuse_own_backward(strategy: "Strategy") -> None:
    """Raise ``InputError`` for a step that runs backward itself under a strategy around the whole LightningModule."""
    wraps_module = isinstance(strategy, DDPStrategy) and not isinstance(strategy, ModelDDPStrategy)
    if wraps_module or isinstance(strategy, DeepSpeedStrategy | FSDPStrategy):
        raise InputError(
            f"`training_step` is overridden, so backward runs inside it, where {type(strategy).__name__} does not "
            "average the gradients of the processes; set `strategy='ddp'`, or override `compute_loss` instead."
        )


def deepspeed_config(args: "TrainingArguments") -> dict[str, Any]:
    """Return ``args.deepspeed`` as Lightning takes it, without ``"auto"`` and without values that Lightning sets.

    Values that contradict the training arguments, or choose an optimizer or scheduler, are refused.
    """
    config = _read(args.deepspeed)  # type: ignore[arg-type]  # transformers declares only one of the forms
    for section in ("optimizer", "scheduler"):
        if section in config:
            raise InputError(
                f"The DeepSpeed configuration has a section `{section}`, but optimizer and scheduler come from the "
                "training arguments here; leave it out, and set `optim`, `learning_rate` and `lr_scheduler_type`."
            )
    expected = {
        "train_micro_batch_size_per_gpu": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "gradient_clipping": args.max_grad_norm,
    }
    for name, value in expected.items():
        if config.get(name, "auto") not in ("auto", value):
            raise InputError(
                f"`{name}={config[name]}` in the DeepSpeed configuration contradicts the training arguments, which "
                f"say {value}; set it to 'auto'."
            )
    # Lightning passes the accumulation to DeepSpeed itself.
    return _without_auto({**config, **expected, "gradient_accumulation_steps": "auto"})


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in config.items() if value != "auto"}
    return {name: _without_auto(value) if isinstance(value, Mapping) else value for name, value in kept.items()}
