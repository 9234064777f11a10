"""The Hugging Face ``Trainer`` API as a facade over Lightning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments as TrainingArguments
    from portico.cli import compose as compose
    from portico.datamodule import TrainerDataModule as TrainerDataModule
    from portico.errors import InputError as InputError
    from portico.module import TrainerModule as TrainerModule
    from portico.mrc.trainer import MRCTrainer as MRCTrainer
    from portico.trainer import Trainer as Trainer

_HOMES = {
    "InputError": "portico.errors",
    "MRCTrainer": "portico.mrc.trainer",
    "Trainer": "portico.trainer",
    "TrainerDataModule": "portico.datamodule",
    "TrainerModule": "portico.module",
    "TrainingArguments": "portico.arguments",
    "compose": "portico.cli",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'portico' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
