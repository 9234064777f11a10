"""AllenNLP's base of all trainers, and what callbacks, checkpointer and loop may ask of one."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from portico.gradient_descent.registry import Registrable


class TrainerCheckpoint(NamedTuple):
    """What a checkpoint holds.

    Args:
        model_state: Weights: the moving averages where there are any.
        trainer_state: Everything else that a training needs to go on.
    """

    model_state: dict[str, Any]
    trainer_state: dict[str, Any]


class Trainer(Registrable):
    """A trainer that a configuration names, ``"gradient_descent"`` by default.

    Attributes:
        model: The model.
        optimizer: The optimizer.
        data_loader: Training batches.
        accelerator: The processes and the device of the run.
        tensorboard_writer: Writer for TensorBoard, or ``None``.
        is_primary: Whether this is the first process.
    """

    default_implementation: ClassVar[str | None] = "gradient_descent"

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data_loader: Any
    accelerator: Any
    tensorboard_writer: Any

    @property
    @abstractmethod
    def is_primary(self) -> bool:
        """Whether this is the first process."""

    @abstractmethod
    def train(self) -> dict[str, Any]:
        """Train, and return the metrics."""

    @abstractmethod
    def get_checkpoint_state(self) -> AbstractContextManager[TrainerCheckpoint]:
        """Return a context in which the states of model and training can be saved."""

    @abstractmethod
    def batch_outputs(self, batch: Any, for_training: bool) -> dict[str, Any]:
        """Run the model on a batch."""
