"""Models spread over devices: ``fsdp`` and ``deepspeed`` of the training arguments as Lightning strategies."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, Strategy
from torch import nn

from portico.distributed.ddp import ModelDDPStrategy
from portico.distributed.fsdp_settings import fsdp_options
from portico.errors import InputError


def sharded_strategy(args: Any, model: nn.Module | None = None) -> Strategy | None:
    """Return the strategy that ``fsdp`` or ``deepspeed`` asks for, or ``None`` where neither is set.

    Args:
        args: Training arguments.
        model: What is trained, if known; its layers can be what is sharded.

    Raises:
        InputError: If this machine, or the rest of the arguments, does not go with it.
    """
    if args.parallelism_config is not None:
        raise InputError(
            f"`parallelism_config={args.parallelism_config!r}` is accelerate's way to split single layers and "
            "sequences; leave it out, and set `strategy=ModelParallelStrategy(...)` of Lightning with the same sizes."
        )
    makers = {name: maker for name, maker in _MAKERS.items() if getattr(args, name)}
    if not makers:
        return None
    if len(makers) > 1 or getattr(args, "strategy", None) is not None:
        fields = [*makers, *(["strategy"] if getattr(args, "strategy", None) is not None else [])]
        raise InputError(f"{' and '.join(f'`{name}`' for name in fields)} each choose a strategy; set one of them.")
    (name, maker), *_ = makers.items()
    _check_place(name, args)
    return maker(args, model)


def is_sharded(strategy: Any) -> bool:
    """Tell whether ``strategy`` spreads the weights over the processes, so that none has them all."""
    return isinstance(strategy, DeepSpeedStrategy | FSDPStrategy)


def refuse_sharded_weights(strategy: Any) -> None:
    """Refuse to write Hugging Face's files from weights of which each process has a part.

    Raises:
        InputError: Names Lightning's way to save them.
    """
    if is_sharded(strategy):
        raise InputError(
            f"Under {type(strategy).__name__} each process has a part of the weights, which are not written as "
            "Hugging Face's files; set `save_strategy='no'`, and save with Lightning's `ModelCheckpoint` in "
            "`lightning_callbacks` or with `trainer.lightning_trainer.save_checkpoint(...)`."
        )


def refuse_own_backward(strategy: Any) -> None:
    """Refuse a training step that goes backward itself where the strategy wraps the LightningModule around it.

    Raises:
        InputError: Names the strategy that allows it.
    """
    wraps_module = isinstance(strategy, DDPStrategy) and not isinstance(strategy, ModelDDPStrategy)
    if wraps_module or is_sharded(strategy):
        raise InputError(
            f"`training_step` is overridden, so backward runs inside it, where {type(strategy).__name__} does not "
            "bring the gradients of the processes together; set `strategy='ddp'`, or override `compute_loss` instead."
        )


def _check_place(name: str, args: Any) -> None:
    accelerator = getattr(args, "accelerator", None) or ("cpu" if args.use_cpu else "auto")
    if not torch.cuda.is_available() or accelerator not in ("auto", "cuda", "gpu"):
        raise InputError(
            f"`{name}` becomes Lightning's {_NAMES[name]}, which needs CUDA devices, and the run is placed on "
            f"accelerator={accelerator!r} {'with' if torch.cuda.is_available() else 'without'} CUDA here; leave it "
            "out, or set `strategy='ddp'` to train on several processes without it."
        )


def _fsdp(args: Any, model: nn.Module | None) -> Strategy:
    return FSDPStrategy(
        process_group_backend=args.ddp_backend,
        timeout=timedelta(seconds=args.ddp_timeout),
        **fsdp_options(args.fsdp, args.fsdp_config, model),
    )


def _deepspeed(args: Any, model: nn.Module | None) -> Strategy:
    if find_spec("deepspeed") is None:
        raise InputError(
            "`deepspeed` becomes Lightning's DeepSpeedStrategy, but DeepSpeed is not installed; install it with "
            "`pip install deepspeed`, or set `strategy='fsdp'`."
        )
    return DeepSpeedStrategy(config=deepspeed_config(args), timeout=timedelta(seconds=args.ddp_timeout))


def deepspeed_config(args: Any) -> dict[str, Any]:
    """Return ``args.deepspeed`` as Lightning takes it: what it decides itself is left out, with all ``"auto"``.

    Raises:
        InputError: If a value contradicts the training arguments, or chooses an optimizer or schedule.
    """
    given = args.deepspeed
    config = dict(given) if isinstance(given, Mapping) else json.loads(Path(given).read_text(encoding="utf-8"))
    for section in ("optimizer", "scheduler"):
        if section in config:
            raise InputError(
                f"The DeepSpeed configuration has a section `{section}`, but optimizer and schedule come from the "
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
    # Lightning tells DeepSpeed itself how many batches a step accumulates.
    config = {**config, **expected}
    del config["gradient_accumulation_steps"]
    return _without_auto(config)


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in config.items() if value != "auto"}
    return {name: _without_auto(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


_MAKERS: Mapping[str, Callable[[Any, nn.Module | None], Strategy]] = {"fsdp": _fsdp, "deepspeed": _deepspeed}
_NAMES = {"fsdp": "FSDPStrategy", "deepspeed": "DeepSpeedStrategy"}
