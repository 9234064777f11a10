from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from portico.gradient_descent.best_weights import BestWeights
from portico.gradient_descent.checkpointer import Checkpointer
from portico.gradient_descent.recovery import check_folder
from portico.gradient_descent.trainer import Trainer, TrainerCheckpoint


@Trainer.register("no_op")
class NoOpTrainer(Trainer):
    """Writes a model down without training it: a checkpoint, ``best.th``, and its vocabulary if it has one.

    Args:
        serialization_dir: Folder to write to.
        model: The model.
    """

    tensorboard_writer = None

    def __init__(self, serialization_dir: str | Path, model: nn.Module) -> None:
        self.serialization_dir = Path(serialization_dir)
        self.model = model

    @property
    def is_primary(self) -> bool:
        """Whether this is the first process."""
        return getattr(rank_zero_only, "rank", 0) == 0

    def train(self) -> dict[str, Any]:
        """Write the model, and return no metrics.

        Raises:
            ConfigurationError: If the folder holds a run; nothing in it is changed.
        """
        check_folder(self.serialization_dir)
        vocabulary: Any = getattr(self.model, "vocab", None)
        if self.is_primary and vocabulary is not None:
            vocabulary.save_to_files(str(self.serialization_dir / "vocabulary"))
        Checkpointer(str(self.serialization_dir)).save_checkpoint(self)
        BestWeights(self.serialization_dir).save(self.model, is_primary=self.is_primary)
        return {}

    @contextmanager
    def get_checkpoint_state(self) -> Iterator[TrainerCheckpoint]:
        """Give the weights, and that nothing has been trained."""
        yield TrainerCheckpoint(self.model.state_dict(), {"epochs_completed": 0, "batches_in_epoch_completed": 0})

    def batch_outputs(self, batch: Any, for_training: bool) -> dict[str, Any]:
        """Run the model on a batch."""
        with torch.set_grad_enabled(for_training):
            outputs: dict[str, Any] = self.model(**batch)
        return outputs
