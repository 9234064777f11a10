"""Experiment trackers and checkpoints on termination, as transformers integrates them."""

from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import get_reporting_integration_callbacks
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

from portico.errors import InputError, InputRuntimeError


def reporting_callbacks(report_to: list[str], logging_dir: str | None = None) -> list[TrainerCallback]:
    """Return the callbacks that report to the trackers named in ``TrainingArguments.report_to``.

    Args:
        report_to: Names of trackers.
        logging_dir: Folder of those that write into one; by default their own choice.

    Raises:
        InputError: If there is no such tracker, or its package is not installed.
    """
    try:
        trackers = [tracker() for tracker in get_reporting_integration_callbacks(report_to)]
    except (ImportError, RuntimeError, ValueError) as error:
        kind = InputRuntimeError if isinstance(error, RuntimeError) else InputError
        raise kind(
            f"`report_to={', '.join(report_to)}` cannot be used ({error}); install its package, name another tracker, "
            "or set it to 'none'."
        ) from error
    for tracker in trackers:
        if logging_dir is not None and hasattr(tracker, "logging_dir"):
            tracker.logging_dir = logging_dir
    return trackers


def termination_callbacks(trainer: Any) -> list[TrainerCallback]:
    """Return the callback that saves a checkpoint on SIGTERM, where ``enable_jit_checkpoint`` asks for it."""
    if not trainer.args.enable_jit_checkpoint:
        return []
    callback = JITCheckpointCallback()
    callback.set_trainer(trainer)
    return [callback]
