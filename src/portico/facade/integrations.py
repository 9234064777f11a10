"""Experiment trackers and checkpoints on termination, as transformers integrates them."""

from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import get_reporting_integration_callbacks
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

from portico.errors import InputError


def reporting_callbacks(report_to: list[str]) -> list[TrainerCallback]:
    """Return the callbacks that report to the trackers named in ``TrainingArguments.report_to``.

    Raises:
        InputError: If there is no such tracker, or its package is not installed.
    """
    try:
        return [tracker() for tracker in get_reporting_integration_callbacks(report_to)]
    except (ImportError, RuntimeError, ValueError) as error:
        raise InputError(
            f"`report_to={', '.join(report_to)}` cannot be used ({error}); install its package, name another tracker, "
            "or set it to 'none'."
        ) from error


def termination_callbacks(trainer: Any) -> list[TrainerCallback]:
    """Return the callback that saves a checkpoint on SIGTERM, where ``enable_jit_checkpoint`` asks for it."""
    if not trainer.args.enable_jit_checkpoint:
        return []
    callback = JITCheckpointCallback()
    callback.set_trainer(trainer)
    return [callback]
