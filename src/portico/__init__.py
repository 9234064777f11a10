"""The Hugging Face ``Trainer`` API as a facade over Lightning."""

from typing import TYPE_CHECKING

from portico.lazy import lazy_exports
from portico.registration import register_with_lightning

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments as TrainingArguments
    from portico.cli import compose as compose
    from portico.datamodule import TrainerDataModule as TrainerDataModule
    from portico.errors import InputError as InputError
    from portico.module import TrainerModule as TrainerModule
    from portico.mrc.trainer import MRCTrainer as MRCTrainer
    from portico.ort.accelerator import ORTAccelerator as ORTAccelerator
    from portico.ort.arguments import ORTTrainingArguments as ORTTrainingArguments
    from portico.ort.strategy import ORTStrategy as ORTStrategy
    from portico.ort.trainer import ORTTrainer as ORTTrainer
    from portico.trainer import Trainer as Trainer

_HOMES = {
    "InputError": "portico.errors",
    "MRCTrainer": "portico.mrc.trainer",
    "ORTAccelerator": "portico.ort.accelerator",
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
    accelerators={"ort": "portico.ort.accelerator:ORTAccelerator"},
    strategies={"ort": "portico.ort.strategy:ORTStrategy", "ort_ddp": "portico.ort.strategy:ORTDDPStrategy"},
)
