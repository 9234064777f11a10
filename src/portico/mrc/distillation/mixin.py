"""What lets a trainer learn from a teacher."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from portico.errors import InputError
from portico.mrc.distillation.losses import POSITION_LOGITS, Distillation
from portico.trainer import Trainer


class DistillationMixin(Trainer):
    """Put before a trainer of extractive readers: its model learns from a teacher.

    Args:
        *args: As in the trainer.
        teacher: A model that reads the same tokens; without one the loss is the usual.
        distillation: How the model learns from it; by default as in PrimeQA.
        **kwargs: As in the trainer.
    """

    def __init__(
        self, *args: Any, teacher: nn.Module | None = None, distillation: Distillation | None = None, **kwargs: Any
    ) -> None:
        self.teacher = teacher
        self.distillation = distillation or Distillation()
        super().__init__(*args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a batch; in training, with what the teacher says of it.

        Args:
            model: The model.
            inputs: Model inputs of the batch.
            return_outputs: Return ``(loss, outputs)``.
            num_items_in_batch: See :meth:`portico.Trainer.compute_loss`.

        Raises:
            InputError: If model or teacher return no start and end logits.
        """
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if self.teacher is not None and model.training:
            taught = self._teacher_outputs(inputs)
            for who, scores in (("model", outputs), ("teacher", taught)):
                _check_scores(who, scores)
            loss = self.distillation(loss, outputs, taught)
        return (loss, outputs) if return_outputs else loss

    def _teacher_outputs(self, inputs: Mapping[str, Any]) -> Any:
        assert self.teacher is not None
        # Moved when it is needed, and only once: it is not among the modules that the strategy places.
        self.teacher.to(self.args.device).eval()
        taken = inspect.signature(self.teacher.forward).parameters
        unlabelled = {name: value for name, value in inputs.items() if name in taken and name not in self.label_names}
        with torch.no_grad(), self.accelerator.autocast():
            return self.teacher(**unlabelled)


def _check_scores(who: str, outputs: Any) -> None:
    if not isinstance(outputs, Mapping) or any(name not in outputs for name in POSITION_LOGITS):
        raise InputError(
            f"Distillation compares start and end logits, which the {who} does not return in training; give an "
            "extractive reader (not one that searches by beams) that returns a `ModelOutput`."
        )
