"""The Hugging Face ``Trainer`` API as a facade over Lightning."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments as TrainingArguments
    from portico.cli import compose as compose
    from portico.datamodule import TrainerDataModule as TrainerDataModule
    from portico.errors import InputError as InputError
    from portico.module import TrainerModule as TrainerModule
    from portico.mrc.trainer import MRCTrainer as MRCTrainer
    from portico.seq2seq.arguments import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from portico.seq2seq.trainer import Seq2SeqTrainer as Seq2SeqTrainer
    from portico.trainer import Trainer as Trainer

_HOMES = {
    "InputError": "portico.errors",
    "MRCTrainer": "portico.mrc.trainer",
    "Seq2SeqTrainer": "portico.seq2seq.trainer",
    "Seq2SeqTrainingArguments": "portico.seq2seq.arguments",
    "Trainer": "portico.trainer",
    "TrainerDataModule": "portico.datamodule",
    "TrainerModule": "portico.module",
    "TrainingArguments": "portico.arguments",
    "compose": "portico.cli",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
