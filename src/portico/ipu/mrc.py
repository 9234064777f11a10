"""The reading comprehension run on IPUs: the embedded task, pipelined."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

from transformers import DataCollatorWithPadding

from portico.configured_run import RunSettings
from portico.ipu.arguments import IPUTrainingArguments
from portico.ipu.config import IPUConfig
from portico.ipu.config.attributes import ATTRIBUTES
from portico.ipu.pipelining.picture import pipeline_picture
from portico.ipu.trainer import IPUMethods
from portico.mrc.collators import head_collator
from portico.mrc.experiment.reader_training import ReaderTraining
from portico.mrc.experiment.run import run_mrc
from portico.mrc.experiment.run import valid_keys as mrc_keys
from portico.mrc.models.loading import head_of
from portico.mrc.trainer import MRCTrainer


class IPUMRCTrainer(IPUMethods, MRCTrainer):
    """``MRCTrainer`` on IPUs: features of one length, answers post-processed on the host while the programs run."""


def valid_keys() -> dict[str, list[str]]:
    """Return the keys that :func:`run_mrc_ipu` takes, for each group in which they are fixed."""
    decided = {"output_dir", "accelerator", "strategy", "devices", "num_nodes", "precision"}
    names = [name for name in IPUTrainingArguments.__dataclass_fields__ if name not in decided]
    return {**mrc_keys(), "args": names, "strategy": list(ATTRIBUTES)}


def run_mrc_ipu(settings: RunSettings) -> dict[str, float]:
    """Train a reader on IPUs, evaluate its answers and write everything into the folder of the run.

    Args:
        settings: As :func:`~portico.mrc.experiment.run.run_mrc` takes them, but for two groups: ``args`` are fields of
            :class:`~portico.ipu.arguments.IPUTrainingArguments`, ``strategy`` has the attributes of
            :class:`~portico.ipu.config.IPUConfig`. All features are padded to ``preprocess.max_seq_length``, as a
            program takes one shape.

    Returns:
        Metrics of training and of the final evaluation.

    Raises:
        InputError: If a setting or a file cannot be used; before training.
    """
    config = IPUConfig(**settings.strategy)
    return run_mrc(
        replace(settings, strategy={}),
        ReaderTraining(
            arguments_class=IPUTrainingArguments,
            make_trainer=partial(_make_trainer, config, settings.preprocess["max_seq_length"]),
            make_multi_source_trainer=None,
            report_sections=_pipeline_section,
            fixed_shapes=True,
        ),
    )


def _make_trainer(config: IPUConfig, max_length: int, **parts: Any) -> IPUMRCTrainer:
    tokenizer = parts["processing_class"]
    padded = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=max_length)
    parts["data_collator"] = head_collator(head_of(parts["model"]), tokenizer, padded)
    return IPUMRCTrainer(ipu_config=config, **parts)


def _pipeline_section(trainer: Any) -> Mapping[str, str]:
    report = trainer.placement_report
    if report is None:
        return {}
    return {"The pipeline": f"{pipeline_picture(report)}<pre>{escape(report.text())}</pre>"}
