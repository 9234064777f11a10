"""Arguments of the trainer that are checked or sorted before anything is built."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import transformers
from torch import nn
from transformers.trainer_utils import has_length

from portico.gradient_descent.batches import steps_per_epoch
from portico.gradient_descent.callbacks import BatchCallback, EndCallback, EpochCallback, TrainerCallback
from portico.gradient_descent.checkpointer import Checkpointer
from portico.gradient_descent.construction import as_lazy, convert
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.optimizers import Optimizer, freeze, make_parameter_groups
from portico.gradient_descent.schedulers import LearningRateScheduler, MomentumScheduler
from portico.gradient_descent.tensorboard import TensorboardWriter

_KINDS: Mapping[str, type] = {
    "model": nn.Module,
    "optimizer": torch.optim.Optimizer,
    "learning_rate_scheduler": LearningRateScheduler,
    "momentum_scheduler": MomentumScheduler,
    "moving_average": MovingAverage,
    "checkpointer": Checkpointer,
    "tensorboard_writer": TensorboardWriter,
}
_SCHEDULERS = ("learning_rate_scheduler", "momentum_scheduler")
_NEEDED = ("model", "optimizer", "data_loader")


def check_counts(**counts: Any) -> None:
    """Refuse counts that are no int of 1 or more, by the names of their arguments.

    Raises:
        ConfigurationError: Names the argument, its value and what is allowed.
    """
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise ConfigurationError(f"`{name}={count!r}` cannot be used; set it to an int >= 1.")


def check_limits(*, grad_norm: Any, grad_clipping: Any) -> None:
    """Refuse limits of gradients that are no numbers above 0.

    Raises:
        ConfigurationError: Names the argument, its value and what is allowed.
    """
    only_measured = isinstance(grad_norm, bool)
    for name, limit in {"grad_norm": None if only_measured else grad_norm, "grad_clipping": grad_clipping}.items():
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
            raise ConfigurationError(f"`{name}={limit!r}` is no limit; set it to a number above 0, or to None.")


def check_objects(**parts: Any) -> None:
    """Refuse arguments of the constructor that are not yet, or not at all, what they should be.

    Args:
        **parts: Model, optimizer, loaders and the other parts by argument name, ``None`` where there is none.

    Raises:
        ConfigurationError: Names the argument, what it is and what it should be.
    """
    given = {name: part for name, part in parts.items() if part is not None or name in _NEEDED}
    for name, part in given.items():
        if name in _KINDS:
            _check_kind(name, part, _KINDS[name])
        else:
            _check_loader(name, part)
    for name in _SCHEDULERS:
        if name in given:
            _check_scheduler(name, given[name], parts["optimizer"])
    _check_parameters(parts["model"], parts["optimizer"])


def _check_kind(name: str, part: Any, kind: type) -> None:
    if not isinstance(part, kind):
        raise ConfigurationError(
            f"`{name}={part!r}` is a {type(part).__name__}; give a {kind.__name__}, or build the trainer with "
            "`GradientDescentTrainer.from_partial_objects`, which takes names and dicts for its parts."
        )


def _check_loader(name: str, loader: Any) -> None:
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise ConfigurationError(
            f"`{name}={loader!r}` is a {type(loader).__name__}; give an iterable of batches, such as a DataLoader."
        )
    if has_length(loader) and len(loader) == 0:
        raise ConfigurationError(
            f"`{name}` is empty, so there is nothing to train on or to validate; give one with at least one batch "
            "(a loader with `drop_last=True` drops all of a data set that is smaller than a batch)."
        )


def _check_scheduler(name: str, scheduler: Any, optimizer: Any) -> None:
    if scheduler.optimizer is not optimizer:
        raise ConfigurationError(
            f"`{name}` ({type(scheduler).__name__}) was made for another optimizer than `optimizer`, whose values "
            "it would not change; make it of the same object."
        )


def _check_parameters(model: Any, optimizer: Any) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ConfigurationError(
            f"`optimizer` ({type(optimizer).__name__}) holds no parameter of `model`, so nothing would be learned; "
            "make it of `model.parameters()`."
        )


class SortedCallbacks(NamedTuple):
    """Callbacks by the library whose kind they are, each in the order given."""

    hugging_face: list[Any]
    lightning: list[Any]
    allennlp: list[TrainerCallback]


def sort_callbacks(callbacks: Sequence[Any]) -> SortedCallbacks:
    """Sort ``callbacks`` by the library whose kind they are.

    Raises:
        ConfigurationError: If one is of none.
    """
    kinds = SortedCallbacks([], [], [])
    for callback in callbacks:
        is_class = isinstance(callback, type) and issubclass(callback, transformers.TrainerCallback)
        if is_class or isinstance(callback, transformers.TrainerCallback):
            kinds.hugging_face.append(callback)
        elif isinstance(callback, pl.Callback):
            kinds.lightning.append(callback)
        elif isinstance(callback, TrainerCallback):
            kinds.allennlp.append(callback)
        else:
            raise ConfigurationError(
                f"`callbacks` holds {callback!r}, which is a callback neither of Hugging Face nor of Lightning, nor a "
                "`TrainerCallback` of AllenNLP 2; those of AllenNLP 1 go to `batch_callbacks`, `epoch_callbacks` and "
                "`end_callbacks`, and names and dicts to `from_partial_objects`."
            )
    return kinds


# Apex kept float32 copies of half-precision weights at O2; Lightning's mixed precision is the nearest to that.
_PRECISIONS = {"O0": "32-true", "O1": "16-mixed", "O2": "16-mixed", "O3": "16-true"}
_DDP = "ddp_find_unused_parameters_true"


def lightning_options(
    *,
    cuda_device: int | torch.device | None,
    distributed: bool,
    world_size: int,
    opt_level: str | None,
    use_amp: bool,
    grad_scaling: bool = True,
    chosen: Mapping[str, Any],
) -> dict[str, Any]:
    """Return ``accelerator``, ``strategy``, ``devices``, ``num_nodes`` and ``precision`` of a run.

    Args:
        cuda_device: Index of a GPU, -1 for the CPU, ``None`` for what there is.
        distributed: Train on ``world_size`` processes.
        world_size: Processes.
        opt_level: Precision in the words of Apex.
        use_amp: Mixed precision, AllenNLP 2's word for ``opt_level="O1"``.
        grad_scaling: Scale the loss in mixed precision.
        chosen: The same in Lightning's words; these win.

    Raises:
        ConfigurationError: If the arguments do not go together.
    """
    if use_amp and not grad_scaling:
        raise ConfigurationError(
            "`grad_scaling=False` with `use_amp=True` is not possible: Lightning's half precision always scales the "
            "loss; leave `grad_scaling` out, or set `precision='bf16-mixed'` in the place of `use_amp`."
        )
    options = {**_device(cuda_device), **_processes(distributed, world_size)}
    precision = _precision(opt_level, use_amp)
    options |= {name: value for name, value in chosen.items() if value is not None}
    if precision is not None:
        options.setdefault("precision", precision)
        _refuse_half_precision_on_cpu(options, opt_level)
    return options


def _device(cuda_device: Any) -> dict[str, Any]:
    if isinstance(cuda_device, list | tuple):
        raise ConfigurationError(
            f"`cuda_device={list(cuda_device)}` names several devices, but a trainer has a single one for each "
            f"process; set `distributed=True` and `world_size={len(cuda_device)}` for one process on each."
        )
    if isinstance(cuda_device, torch.device):
        cuda_device = -1 if cuda_device.type == "cpu" else cuda_device.index or 0
    if cuda_device is None:
        return {}
    if type(cuda_device) is not int:
        raise ConfigurationError(
            f"`cuda_device={cuda_device!r}` is a {type(cuda_device).__name__}; set it to the index of a GPU, to -1 "
            "for the CPU, or to None for what there is."
        )
    if cuda_device < 0:
        return {"accelerator": "cpu"}
    num_devices = torch.cuda.device_count()
    if cuda_device >= num_devices:
        raise ConfigurationError(
            f"`cuda_device={cuda_device}`, but this machine has {num_devices} GPUs that torch can use; set it to -1 "
            "for the CPU, or to None for what there is."
        )
    return {"accelerator": "cuda", "devices": [cuda_device]}


def _processes(distributed: bool, world_size: int) -> dict[str, Any]:
    if not distributed:
        return {}
    if world_size <= 1:
        raise ConfigurationError(
            f"`distributed=True` with `world_size={world_size}`: distributed training can be performed only with more "
            "than 1 device; set `world_size` to the number of processes."
        )
    return {"strategy": _DDP, "devices": world_size}


def _precision(opt_level: str | None, use_amp: bool) -> str | None:
    if opt_level is None:
        return "16-mixed" if use_amp else None
    if opt_level not in _PRECISIONS:
        raise ConfigurationError(
            f"`opt_level={opt_level!r}` is none of Apex's: {', '.join(_PRECISIONS)}; set it to one of them, or give "
            "Lightning's `precision`."
        )
    if opt_level in ("O2", "O3"):
        warnings.warn(
            f"`opt_level='{opt_level}'` becomes Lightning's `precision='{_PRECISIONS[opt_level]}'`, which differs "
            "from Apex: at O2 Apex keeps the weights in half precision with float32 copies, at O3 it keeps batch "
            "normalisation in float32 on request; neither is done here.",
            UserWarning,
            stacklevel=5,
        )
    return _PRECISIONS[opt_level]


def _refuse_half_precision_on_cpu(options: Mapping[str, Any], opt_level: str | None) -> None:
    accelerator = options.get("accelerator")
    on_cpu = accelerator == "cpu" or (accelerator is None and not torch.accelerator.is_available())
    if on_cpu and str(options["precision"]).startswith("16"):
        asked = "use_amp=True" if opt_level is None else f"opt_level={opt_level!r}"
        raise ConfigurationError(
            f"`{asked}` asks for half precision, which requires a CUDA device, but the run is on the CPU; leave it "
            "out, or set `precision='bf16-mixed'`."
        )


_BASES: Mapping[str, Any] = {
    "optimizer": Optimizer,
    "moving_average": MovingAverage,
    "learning_rate_scheduler": LearningRateScheduler,
    "momentum_scheduler": MomentumScheduler,
    "checkpointer": Checkpointer,
    "tensorboard_writer": TensorboardWriter,
}
_CALLBACK_BASES: Mapping[str, Any] = {
    "batch_callbacks": BatchCallback,
    "epoch_callbacks": EpochCallback,
    "end_callbacks": EndCallback,
    "callbacks": TrainerCallback,
}


def construct_parts(
    model: nn.Module,
    *,
    data_loader: Any,
    serialization_dir: str | None,
    num_epochs: int,
    num_gradient_accumulation_steps: int,
    world_size: int,
    no_grad: Sequence[str] | None,
    lazy_parts: Mapping[str, Any],
    callbacks: Mapping[str, Sequence[Any] | None],
) -> dict[str, Any]:
    """Return arguments for the trainer's constructor.

    Args:
        model: Model, parts of which are frozen before anything else is built.
        data_loader: Its length tells the schedulers the steps of an epoch.
        serialization_dir: Folder of the run.
        num_epochs: Epochs of the training.
        num_gradient_accumulation_steps: Batches of an optimizer step.
        world_size: Processes.
        no_grad: Patterns of the parameters to freeze.
        lazy_parts: Parts by argument name, lazy or ``None``.
        callbacks: Lists of callbacks or their configurations, by argument name.

    Raises:
        ConfigurationError: If a part cannot be built.
    """
    # All are looked up before the first is built, so that a wrong name is told at once.
    lazy = {name: as_lazy(base, lazy_parts[name]) for name, base in _BASES.items()}
    made: dict[str, Any] = {
        name: convert(list[base], callbacks[name], name, {"serialization_dir": serialization_dir})  # type: ignore[valid-type]
        for name, base in _CALLBACK_BASES.items()
    }
    freeze(model, convert(list[str] | None, no_grad, "no_grad", {}))
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trainable:
        raise ConfigurationError(
            f"The model has no parameter left to train with `no_grad={no_grad}`; let its patterns match fewer names."
        )
    known: dict[str, Any] = {
        "model_parameters": trainable,
        # Classes of torch take the parameters under this name.
        "params": make_parameter_groups(trainable),
        "serialization_dir": serialization_dir,
    }
    lazy["optimizer"] = lazy["optimizer"] or as_lazy(Optimizer, "adam")
    for name in _BASES:
        part = lazy[name]
        if part is None:
            continue
        made[name] = part.construct(**known)
        if name == "optimizer":
            known |= {
                "optimizer": made[name],
                "num_epochs": num_epochs,
                "num_steps_per_epoch": steps_per_epoch(data_loader, num_gradient_accumulation_steps, world_size),
                # A parameter group may have frozen some more.
                "parameters": [pair for pair in trainable if pair[1].requires_grad],
            }
    return made
