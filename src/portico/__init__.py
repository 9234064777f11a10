"""The Hugging Face ``Trainer`` API as a facade over Lightning."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports
from portico.registration import register_with_lightning

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments as TrainingArguments
    from portico.cli import compose as compose
    from portico.datamodule import TrainerDataModule as TrainerDataModule
    from portico.errors import InputError as InputError
    from portico.gradient_descent.callbacks import BatchCallback as BatchCallback
    from portico.gradient_descent.callbacks import EpochCallback as EpochCallback
    from portico.gradient_descent.checkpointer import Checkpointer as Checkpointer
    from portico.gradient_descent.moving_average import ExponentialMovingAverage as ExponentialMovingAverage
    from portico.gradient_descent.moving_average import MovingAverage as MovingAverage
    from portico.gradient_descent.trainer import GradientDescentTrainer as GradientDescentTrainer
    from portico.ipu.accelerator import IPUAccelerator as IPUAccelerator
    from portico.ipu.arguments import IPUTrainingArguments as IPUTrainingArguments
    from portico.ipu.config import IPUConfig as IPUConfig
    from portico.ipu.gradient_descent import IPUGradientDescentTrainer as IPUGradientDescentTrainer
    from portico.ipu.seq2seq import IPUSeq2SeqTrainer as IPUSeq2SeqTrainer
    from portico.ipu.seq2seq import IPUSeq2SeqTrainingArguments as IPUSeq2SeqTrainingArguments
    from portico.ipu.strategy import IPUStrategy as IPUStrategy
    from portico.ipu.trainer import IPUTrainer as IPUTrainer
    from portico.module import TrainerModule as TrainerModule
    from portico.mrc.seq2seq.trainer import Seq2SeqMRCTrainer as Seq2SeqMRCTrainer
    from portico.mrc.trainer import MRCTrainer as MRCTrainer
    from portico.old_spellings.parser import HfArgumentParser as HfArgumentParser
    from portico.ort.accelerator import ORTAccelerator as ORTAccelerator
    from portico.ort.arguments import ORTTrainingArguments as ORTTrainingArguments
    from portico.ort.seq2seq import ORTSeq2SeqTrainer as ORTSeq2SeqTrainer
    from portico.ort.seq2seq import ORTSeq2SeqTrainingArguments as ORTSeq2SeqTrainingArguments
    from portico.ort.strategy import ORTStrategy as ORTStrategy
    from portico.ort.trainer import ORTTrainer as ORTTrainer
    from portico.seq2seq.arguments import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from portico.seq2seq.trainer import Seq2SeqTrainer as Seq2SeqTrainer
    from portico.trainer import Trainer as Trainer

_HOMES = {
    "BatchCallback": "portico.gradient_descent.callbacks",
    "Checkpointer": "portico.gradient_descent.checkpointer",
    "EpochCallback": "portico.gradient_descent.callbacks",
    "ExponentialMovingAverage": "portico.gradient_descent.moving_average",
    "GradientDescentTrainer": "portico.gradient_descent.trainer",
    "HfArgumentParser": "portico.old_spellings.parser",
    "IPUAccelerator": "portico.ipu.accelerator",
    "IPUConfig": "portico.ipu.config",
    "IPUGradientDescentTrainer": "portico.ipu.gradient_descent",
    "IPUSeq2SeqTrainer": "portico.ipu.seq2seq",
    "IPUSeq2SeqTrainingArguments": "portico.ipu.seq2seq",
    "IPUStrategy": "portico.ipu.strategy",
    "IPUTrainer": "portico.ipu.trainer",
    "IPUTrainingArguments": "portico.ipu.arguments",
    "InputError": "portico.errors",
    "MRCTrainer": "portico.mrc.trainer",
    "MovingAverage": "portico.gradient_descent.moving_average",
    "Seq2SeqMRCTrainer": "portico.mrc.seq2seq.trainer",
    "Seq2SeqTrainer": "portico.seq2seq.trainer",
    "Seq2SeqTrainingArguments": "portico.seq2seq.arguments",
    "ORTAccelerator": "portico.ort.accelerator",
    "ORTSeq2SeqTrainer": "portico.ort.seq2seq",
    "ORTSeq2SeqTrainingArguments": "portico.ort.seq2seq",
    "ORTStrategy": "portico.ort.strategy",
    "ORTTrainer": "portico.ort.trainer",
    "ORTTrainingArguments": "portico.ort.arguments",
    "Trainer": "portico.trainer",
    "TrainerDataModule": "portico.datamodule",
    "TrainerModule": "portico.module",
    "TrainingArguments": "portico.arguments",
    "compose": "portico.cli",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)

register_with_lightning(
    accelerators={"ipu": "portico.ipu.accelerator:IPUAccelerator", "ort": "portico.ort.accelerator:ORTAccelerator"},
    strategies={
        "ipu": "portico.ipu.strategy:IPUStrategy",
        "ort": "portico.ort.strategy:ORTStrategy",
        "ort_ddp": "portico.ort.strategy:ORTDDPStrategy",
    },
)
