"""Reading comprehension on IPUs: ``IPUMRCTrainer`` and the experiment that pipelines its model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from portico.compat.annotations import DataCollator
from portico.errors import InputError
from portico.experiments.experiment import RESERVED_TRAINER_ARGUMENTS, RESERVED_TRAINING_ARGUMENTS, group_field
from portico.experiments.settings import GroupSchema, Setting, documentation
from portico.ipu.arguments import IPUTrainingArguments
from portico.ipu.config import ATTRIBUTES, IPUConfig
from portico.ipu.pipelining.report import pipeline_picture
from portico.ipu.trainer import IPUMixin
from portico.mrc.collators import head_collator
from portico.mrc.experiment import MRCExperiment
from portico.mrc.inference import Inference
from portico.mrc.models.loading import ModelAndTokenizer, head_of
from portico.mrc.trainer import MRCTrainer
from portico.trust.names import data_only


@data_only
class IPUMRCTrainer(IPUMixin, MRCTrainer):
    """``MRCTrainer`` on IPUs: features of one length, answers post-processed on the host while the programs run."""


class IPUInference(Inference, IPUMRCTrainer):
    """:class:`~portico.mrc.inference.Inference` on IPUs."""


def _attributes(config_class: Callable[..., object]) -> GroupSchema:
    docs = documentation(config_class)
    docs |= {f"inference_{name}": f"{text}, in inference" for name, text in docs.items()}
    return GroupSchema(
        {name: Setting(attribute.default, help=docs.get(name, "")) for name, attribute in ATTRIBUTES.items()}
    )


@data_only
@dataclass(kw_only=True)
class IPUMRCExperiment(MRCExperiment):
    """:class:`~portico.mrc.experiment.MRCExperiment` on IPUs; ``strategy`` has the attributes of ``IPUConfig``."""

    args: Any = group_field(partial(IPUTrainingArguments), decided=RESERVED_TRAINING_ARGUMENTS)
    trainer: Any = group_field(partial(IPUMRCTrainer), decided=RESERVED_TRAINER_ARGUMENTS)
    strategy: Any = group_field(IPUConfig, settings=_attributes)

    def placement(self) -> dict[str, Any]:
        """Return nothing: the strategy is for the trainer, not for its arguments."""
        return {}

    def make_trainer(self, args: IPUTrainingArguments, *, training: bool = True) -> Any:
        """Return the trainer of features padded to ``preprocess.max_seq_length``, as a program takes one shape."""
        if getattr(self.preprocess, "packing", False):
            raise InputError(
                "`preprocess.packing=true` makes batches of varying shapes, but IPUs run programs of one shape; set "
                "it to false."
            )
        return super().make_trainer(args, training=training)

    def _trainer(self) -> Any:
        return partial(_make_trainer, super()._trainer(), self.preprocess.max_seq_length, ipu_config=self.strategy)

    def _inference(self, reader: ModelAndTokenizer, args: IPUTrainingArguments) -> IPUInference:
        collator = _make_collator(reader.model, reader.tokenizer, self.preprocess.max_seq_length)
        return IPUInference(reader, args, data_collator=collator, ipu_config=self.strategy)

    def report_sections(self, trainer: IPUMRCTrainer) -> Mapping[str, str]:
        report = trainer.placement_report
        if report is None:
            return {}
        return {"The pipeline": f"{pipeline_picture(report)}<pre>{escape(report.text())}</pre>"}


def _make_trainer(trainer: Callable[..., IPUMRCTrainer], max_length: int, **parts: Any) -> IPUMRCTrainer:
    parts["data_collator"] = _make_collator(parts["model"], parts["processing_class"], max_length)
    return trainer(**parts)


def _make_collator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> DataCollator:
    padded = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=max_length)
    return head_collator(head_of(model), tokenizer, padded)
