"""The arguments of the trainer: built from configurations, checked, and translated into Lightning's."""

import logging
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn

from portico.compat.transformers import has_length
from portico.gradient_descent.batches import steps_per_epoch
from portico.gradient_descent.checkpointer import Checkpointer
from portico.gradient_descent.construction import ConfigurationError, Lazy, convert, make_lazy
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.optimizers import RegistrableOptimizer, freeze, make_parameter_groups
from portico.gradient_descent.schedulers import LearningRateScheduler, MomentumScheduler
from portico.gradient_descent.tensorboard import TensorboardWriter

logger = logging.getLogger(__name__)

# In the order in which they need each other: the optimizer first, then what follows it.
LAZY_PARTS: Mapping[str, Any] = {
    "optimizer": RegistrableOptimizer,
    "moving_average": MovingAverage,
    "learning_rate_scheduler": LearningRateScheduler,
    "momentum_scheduler": MomentumScheduler,
    "checkpointer": Checkpointer,
    "tensorboard_writer": TensorboardWriter,
}
_TYPES: Mapping[str, type] = {**LAZY_PARTS, "model": nn.Module, "optimizer": torch.optim.Optimizer}
_REQUIRED = ("model", "optimizer", "data_loader")
# Apex kept float32 copies of half-precision weights at O2; Lightning's mixed precision comes closest.
_PRECISIONS = {"O0": "32-true", "O1": "16-mixed", "O2": "16-mixed", "O3": "16-true"}


# ---- Construction ----


def construct_parts(
    model: nn.Module,
    *,
    data_loader: Iterable[Any],
    serialization_dir: str | None,
    counts: Mapping[str, int],
    no_grad: Sequence[str] | None,
    lazy_parts: Mapping[str, object],
) -> dict[str, Any]:
    """Return the parts of a trainer that need each other, as arguments of its constructor.

    Parameters that match the regular expressions ``no_grad`` are frozen first.

    Args:
        model: The model.
        data_loader: Training batches.
        serialization_dir: Folder of the run.
        counts: ``num_epochs``, ``num_gradient_accumulation_steps`` and ``world_size``.
        no_grad: Regular expressions of parameter names.
        lazy_parts: Values of ``LAZY_PARTS``: partials or configurations, or ``None`` for the default.
    """
    check_counts(**counts)
    # All are looked up before the first is built, so that a wrong name is reported at once.
    lazy = {name: make_lazy(base, lazy_parts[name]) for name, base in LAZY_PARTS.items()}
    freeze(model, convert(list[str] | None, no_grad, "no_grad", {}))
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trainable:
        raise ConfigurationError(
            f"The model has no parameter left to train with `no_grad={no_grad}`; let its patterns match fewer names."
        )
    known: dict[str, Any] = {
        "model_parameters": trainable,
        # torch's classes take the parameters under this name.
        "params": make_parameter_groups(trainable),
        "serialization_dir": serialization_dir,
    }
    optimizer = lazy.pop("optimizer") or Lazy(RegistrableOptimizer.by_name("adam"))
    made = {"optimizer": optimizer.construct(**known)}
    check_finite(made["optimizer"])
    known |= {
        "optimizer": made["optimizer"],
        "num_epochs": counts["num_epochs"],
        "num_steps_per_epoch": steps_per_epoch(
            data_loader, counts["num_gradient_accumulation_steps"], counts["world_size"]
        ),
        # A parameter group may have frozen some more.
        "parameters": [pair for pair in trainable if pair[1].requires_grad],
    }
    return made | {name: part.construct(**known) for name, part in lazy.items() if part is not None}


# ---- Checks ----


def check_counts(**counts: object) -> None:
    """Raise ``ConfigurationError`` unless all are integers of 1 or more."""
    for name, count in counts.items():
        if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
            raise ConfigurationError(f"`{name}={count!r}` cannot be used; set it to an int >= 1.")


def check_limits(*, grad_norm: object, grad_clipping: object) -> None:
    """Raise ``ConfigurationError`` unless both are positive numbers or ``None``; ``grad_norm`` may be 0 or a bool."""
    limits: dict[str, Any] = {"grad_norm": grad_norm, "grad_clipping": grad_clipping}
    for name, limit in limits.items():
        # As in AllenNLP, a norm of 0 does not rescale.
        if limit is None or (name == "grad_norm" and (isinstance(limit, bool) or limit == 0)):
            continue
        if isinstance(limit, bool) or not isinstance(limit, Real) or not float(limit) > 0:
            raise ConfigurationError(f"`{name}={limit!r}` is not a limit; set it to a number above 0 or None.")


def check_finite(optimizer: object) -> None:
    """Raise ``ConfigurationError`` if an option of an optimizer is NaN or its rate infinite; torch lets most pass."""
    for group in getattr(optimizer, "param_groups", ()):
        for name, value in group.items():
            # Other options may be infinite: a limit that nothing reaches.
            if isinstance(value, float) and (math.isnan(value) or (name == "lr" and math.isinf(value))):
                raise ConfigurationError(f"`{name}={value!r}` of the optimizer is not finite; set it to a number.")


def check_trainer_parts(parts: Mapping[str, Any]) -> None:
    """Raise ``ConfigurationError`` if a part of a trainer has the wrong type, or belongs to another training.

    ``parts`` are the attributes of the trainer by name.
    """
    for name, kind in _TYPES.items():
        part = parts[name]
        if not isinstance(part, kind) and (part is not None or name in _REQUIRED):
            raise ConfigurationError(
                f"`{name}={part!r}` must be of type {kind.__name__}, not {type(part).__name__}; pass one, or "
                "build the trainer with `GradientDescentTrainer.from_partial_objects`, which takes names and dicts."
            )
    for name in ("data_loader", "validation_data_loader"):
        loader = parts[name]
        if loader is None and name not in _REQUIRED:
            continue
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise ConfigurationError(
                f"`{name}={loader!r}` cannot be iterated; pass an iterable of batches, such as a DataLoader."
            )
        if has_length(loader) and len(loader) == 0:
            raise ConfigurationError(
                f"`{name}` is empty, so there is nothing to train on or to validate; pass one with at least one batch "
                "(a loader with `drop_last=True` drops all of a dataset that is smaller than a batch)."
            )
    optimizer = parts["optimizer"]
    for name in ("learning_rate_scheduler", "momentum_scheduler"):
        scheduler = parts[name]
        if scheduler is not None and scheduler.optimizer is not optimizer:
            raise ConfigurationError(
                f"`{name}` ({type(scheduler).__name__}) was made for another optimizer than `optimizer`, whose "
                "values it would not change; make it for the same object."
            )


# ---- Lightning's words ----


def resolve_placement(
    cuda_device: int | torch.device | None, distributed: bool, world_size: int, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return Lightning's ``accelerator``, ``strategy``, ``devices`` and ``num_nodes``, as far as they are chosen.

    ``chosen`` has the same in Lightning's words, ``None`` where not chosen; these take precedence.
    """
    if isinstance(cuda_device, list | tuple):
        raise ConfigurationError(
            f"`cuda_device={list(cuda_device)}` names several devices, but each process trains on one; set "
            f"`distributed=True` and `world_size={len(cuda_device)}` for one process on each."
        )
    if isinstance(cuda_device, torch.device):
        cuda_device = -1 if cuda_device.type == "cpu" else cuda_device.index or 0
    if isinstance(cuda_device, Integral) and not isinstance(cuda_device, bool):
        cuda_device = int(cuda_device)  # such as an integer of numpy
    if cuda_device is not None and type(cuda_device) is not int:
        raise ConfigurationError(
            f"`cuda_device={cuda_device!r}` is a {type(cuda_device).__name__}; set it to the index of a GPU, to -1 "
            "for the CPU, or to None for the default."
        )
    if cuda_device is not None and cuda_device >= (num_devices := torch.cuda.device_count()):
        raise ConfigurationError(
            f"`cuda_device={cuda_device}`, but this machine has {num_devices} GPUs that torch can use; set it to -1 "
            "for the CPU, or to None for the default."
        )
    options: dict[str, Any] = {}
    if cuda_device is not None:
        options = {"accelerator": "cpu"} if cuda_device < 0 else {"accelerator": "cuda", "devices": [cuda_device]}
    if distributed and world_size <= 1:
        raise ConfigurationError(
            f"`distributed=True` with `world_size={world_size}`: distributed training can be performed only with more "
            "than 1 device; set `world_size` to the number of processes."
        )
    if distributed:
        # AllenNLP's DDP searches for unused parameters too.
        num_devices = world_size // (chosen.get("num_nodes") or 1)
        options |= {"strategy": "ddp_find_unused_parameters_true", "devices": num_devices}
    return options | {name: value for name, value in chosen.items() if value is not None}


def check_world_size(world_size: int, num_processes: int, *, distributed: bool) -> None:
    """Raise ``ConfigurationError`` if a distributed run has another number of processes than ``world_size``.

    As in AllenNLP, ``world_size`` has no effect without ``distributed``, which is announced.
    """
    if world_size in (1, num_processes):
        return
    run = f"the run has {num_processes} {'process' if num_processes == 1 else 'processes'}"
    if distributed:
        raise ConfigurationError(
            f"`world_size={world_size}`, but {run}; set it to their number, or start as many processes."
        )
    logger.warning(
        "`world_size=%d` has no effect, and %s; set `distributed=True` with it to start as many, or leave it out.",
        world_size,
        run,
    )


def resolve_precision(
    opt_level: str | None, use_amp: bool, grad_scaling: bool, precision: str | None, accelerator: str | None
) -> dict[str, Any]:
    """Return Lightning's ``precision``, if it is chosen; ``precision`` takes precedence over AllenNLP's arguments."""
    if use_amp and not grad_scaling:
        raise ConfigurationError(
            "`grad_scaling=False` with `use_amp=True` is not possible: Lightning's half precision always scales the "
            "loss; leave `grad_scaling` out, or set `precision='bf16-mixed'` instead of `use_amp`."
        )
    if opt_level not in (None, *_PRECISIONS):
        raise ConfigurationError(
            f"Unknown `opt_level={opt_level!r}`; expected one of Apex's {', '.join(_PRECISIONS)}, or set Lightning's "
            "`precision`."
        )
    of_allennlp = "16-mixed" if use_amp else None
    if opt_level is not None:
        of_allennlp = _PRECISIONS[opt_level]
    if opt_level in ("O2", "O3"):
        warnings.warn(
            f"`opt_level='{opt_level}'` becomes Lightning's `precision='{of_allennlp}'`, which differs from Apex: at "
            "O2 Apex keeps the weights in half precision with float32 copies, at O3 it keeps batch normalisation in "
            "float32 on request; neither is done here.",
            UserWarning,
            stacklevel=3,
        )
    chosen = precision or of_allennlp
    on_cpu = accelerator == "cpu" or (accelerator is None and not torch.accelerator.is_available())
    if of_allennlp is not None and on_cpu and str(chosen).startswith("16"):
        given = "use_amp=True" if opt_level is None else f"opt_level={opt_level!r}"
        raise ConfigurationError(
            f"`{given}` means half precision, which requires a CUDA device, but the run is on the CPU; leave it out, "
            "or set `precision='bf16-mixed'`."
        )
    return {} if chosen is None else {"precision": chosen}
