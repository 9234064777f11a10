"""The reading comprehension run in ONNX Runtime: the embedded task, with what only ``ORTTrainingArguments`` have."""

from portico.configured_run import RunSettings, argument_keys
from portico.mrc.experiment.reader_training import ReaderTraining
from portico.mrc.experiment.run import run_mrc
from portico.mrc.experiment.run import valid_keys as mrc_keys
from portico.mrc.trainer import MRCTrainer
from portico.ort.arguments import ORTTrainingArguments
from portico.ort.trainer import ORTMixin


class ORTMRCTrainer(ORTMixin, MRCTrainer):
    """``MRCTrainer`` in ONNX Runtime."""


def valid_keys() -> dict[str, list[str]]:
    """Return the keys that :func:`run_mrc_ort` takes, for each group in which they are fixed."""
    return {**mrc_keys(), "args": argument_keys(ORTTrainingArguments)}


def run_mrc_ort(settings: RunSettings) -> dict[str, float]:
    """Train a reader in ONNX Runtime, evaluate its answers and write everything into the folder of the run.

    Args:
        settings: As :func:`~portico.mrc.experiment.run.run_mrc` takes them, with fields of
            :class:`~portico.ort.arguments.ORTTrainingArguments` as ``args``.

    Returns:
        Metrics of training and of the final evaluation.

    Raises:
        InputError: If a setting or a file cannot be used; before training.
    """
    return run_mrc(settings, ReaderTraining(arguments_class=ORTTrainingArguments, make_trainer=ORTMRCTrainer))
