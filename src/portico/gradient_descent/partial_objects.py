"""The parts of a trainer that need other parts, built in the order in which they do."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from portico.gradient_descent.callbacks import BatchCallback, EndCallback, EpochCallback, TrainerCallback
from portico.gradient_descent.checkpointer import Checkpointer
from portico.gradient_descent.construction import as_lazy, convert
from portico.gradient_descent.epoch_plan import steps_per_epoch
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.learning_rate_schedulers import LearningRateScheduler
from portico.gradient_descent.momentum_schedulers import MomentumScheduler
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.optimizers import Optimizer
from portico.gradient_descent.parameter_groups import freeze, make_parameter_groups
from portico.gradient_descent.tensorboard import TensorboardWriter

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
