"""A training's state written down, and brought back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from portico.checkpoint.writer import gradient_scaler
from portico.gradient_descent.callback_states import callback_states, restore_callbacks
from portico.gradient_descent.epoch_plan import steps_per_epoch
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.random_states import present_states
from portico.gradient_descent.trainer import TrainerCheckpoint

_VERSION = 1
# What only a run leaves behind, AllenNLP's or Hugging Face's.
_SIGNS_OF_A_RUN = ("*model_state_*.th", "best.th", "metrics*.json", "checkpoint-*", "trainer_state.json")
_STATEFUL = ("learning_rate_scheduler", "momentum_scheduler", "moving_average")


def training_state(trainer: Any) -> dict[str, Any]:
    """Return everything but the weights that ``trainer`` needs to go on as if it had never stopped.

    With moving averages in the place of the weights, the trained weights are among them.
    """
    loop = trainer.loop
    state = {
        "version": _VERSION,
        "metric_tracker": trainer.metric_tracker.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "data": _data_counts(trainer),
        "processes": _of_all_processes(
            {
                "random_states": present_states(trainer.data_loader, loop.args),
                **trainer.progress.state_of_process(),
            },
            loop,
        ),
        "callbacks": callback_states(trainer),
        **trainer.progress.state_dict(),
    }
    for name in _STATEFUL:
        part = getattr(trainer, name)
        if part is not None:
            state[name] = part.state_dict()
    scaler = gradient_scaler(loop)
    if scaler is not None:
        state["scaler"] = scaler.state_dict()
    return state


def restore_training(trainer: Any, checkpoint: TrainerCheckpoint) -> None:
    """Bring ``trainer`` to where ``checkpoint`` was written; nothing is changed if it is of another training.

    Raises:
        ConfigurationError: If model, optimizer or data are not those that the checkpoint was written with.
    """
    model_state, state = checkpoint
    reason = _why_not(trainer, model_state, state)
    if reason is not None:
        raise ConfigurationError(
            f"Could not recover training from the checkpoint in {trainer.serialization_dir}: {reason}. Did you mean "
            "to output to a different serialization directory or delete the existing serialization directory?"
        )
    trainer.model.load_state_dict(model_state)
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.metric_tracker.load_state_dict(state["metric_tracker"])
    of_process = _of_this_process(state["processes"], trainer.loop)
    trainer.progress.load_state_dict(state, of_process)
    for name in _STATEFUL:
        if name in state:
            getattr(trainer, name).load_state_dict(state[name])
    if trainer.moving_average is not None:
        # The model's state holds the averages, the backups what was trained.
        trainer.moving_average.restore()
    restore_callbacks(trainer, state["callbacks"])
    # Those of Lightning are set up by the run first.
    trainer.restored_callbacks = state["callbacks"]
    trainer.restored_scaler = state.get("scaler")
    trainer.restored_states = of_process["random_states"]


def check_folder(folder: Path | None) -> None:
    """Refuse a folder that holds a run from which training cannot go on.

    Raises:
        ConfigurationError: Names what was found; nothing has been written.
    """
    if folder is None or not folder.is_dir():
        return
    signs = sorted(path.name for pattern in _SIGNS_OF_A_RUN for path in folder.glob(pattern))
    if signs:
        raise ConfigurationError(
            f"The serialization directory {folder} already holds a run ({', '.join(signs[:3])}), but no checkpoint "
            "that training can go on from. Specify another directory to write to, or delete the existing one."
        )


def _why_not(trainer: Any, model_state: Mapping[str, Any], state: Mapping[str, Any]) -> str | None:
    """Say in what the checkpoint differs from the present training, if it does."""
    if state.get("version") != _VERSION:
        return f"it is of version {state.get('version')}, this is version {_VERSION}"
    present, saved = _shapes(trainer.model.state_dict()), _shapes(model_state)
    different = sorted(name for name in {**present, **saved} if present.get(name) != saved.get(name))
    if different:
        return f"its model has other weights ({', '.join(different[:3])})"
    if _group_sizes(trainer.optimizer.state_dict()) != _group_sizes(state["optimizer"]):
        return "its optimizer has other parameter groups"
    for name in _STATEFUL:
        if (name in state) != (getattr(trainer, name) is not None):
            return f"it was written {'with' if name in state else 'without'} a `{name}`"
    if _data_counts(trainer) != state["data"]:
        return f"it was written with the data counts {state['data']}, which are now {_data_counts(trainer)}"
    return None


def _shapes(model_state: Mapping[str, Any]) -> dict[str, Any]:
    # A module may keep an extra state that is no tensor.
    return {name: getattr(value, "shape", None) for name, value in model_state.items()}


def _data_counts(trainer: Any) -> dict[str, int | None]:
    group = trainer.num_gradient_accumulation_steps
    return {
        "num_steps_per_epoch": steps_per_epoch(trainer.data_loader, group),
        "num_gradient_accumulation_steps": group,
    }


def _group_sizes(optimizer_state: Mapping[str, Any]) -> list[int]:
    return [len(group["params"]) for group in optimizer_state["param_groups"]]


def _of_all_processes(states: dict[str, Any], loop: Any) -> list[dict[str, Any]]:
    if loop.args.world_size == 1:
        return [states]
    gathered: list[Any] = [None] * loop.args.world_size
    torch.distributed.all_gather_object(gathered, states)
    return gathered


def _of_this_process(states: list[dict[str, Any]], loop: Any) -> dict[str, Any]:
    # A run that goes on with more processes than before has no states for the new ones.
    return states[loop.args.process_index % len(states)]
