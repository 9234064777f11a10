"""A whole step of a ``LightningModule`` as the program."""

import warnings
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from portico.errors import InputError
from portico.ipu import backend
from portico.tree import map_tensors


class TracedStep(nn.Module):
    """Runs one step of a ``LightningModule``; the loss that a training step returns is marked.

    Args:
        module: The user's module.
        step_name: ``"training_step"``, ``"validation_step"``, ``"test_step"`` or ``"predict_step"``.
    """

    def __init__(self, module: pl.LightningModule, step_name: str) -> None:
        super().__init__()
        self.module = module
        self.step_name = step_name
        self._has_warned = False

    def forward(self, batch: Any, batch_idx: Tensor, *rest: Tensor) -> Any:
        """Run the step; indices come as tensors of one element for each micro-batch."""
        scalars = [batch_idx.reshape(-1)[0], *(index.reshape(-1)[0] for index in rest)]
        module: pl.LightningModule = self.module
        # What is logged inside a program is lost: on a device Python runs once, to compile it.
        module.__dict__["log"] = self._not_logged
        try:
            outputs = getattr(module, self.step_name)(batch, *scalars)
        finally:
            del module.__dict__["log"]
        return self._with_marked_loss(outputs) if self.step_name == "training_step" else outputs

    def _with_marked_loss(self, outputs: Any) -> Any:
        if isinstance(outputs, Tensor):
            return backend.identity_loss(outputs, "none")
        if isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor):
            return {**outputs, "loss": backend.identity_loss(outputs["loss"], "none")}
        raise InputError(
            f"`training_step` returned {type(outputs).__name__}; on IPUs it has to return the loss, or a dict with it "
            "under 'loss', for every batch."
        )

    def _not_logged(self, name: str, *args: Any, **kwargs: Any) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"`self.log({name!r}, ...)` in `{self.step_name}` has no effect: the step is compiled into a program, "
                "in which nothing can be logged. Log what the step returns, in `on_train_batch_end` or another hook.",
                UserWarning,
                stacklevel=3,
            )


def step_arguments(batch: Any, indices: tuple[int, ...], num_micro_batches: int) -> tuple[Any, ...]:
    """Return the arguments of a program: containers that it takes, and numbers as tensors with a row each.

    A Python number would be compiled into the program.
    """
    numbers = [torch.full((num_micro_batches,), index, dtype=torch.int32) for index in indices]
    return (_with_tuples(batch, num_micro_batches), *numbers)


def _with_tuples(batch: Any, num_micro_batches: int) -> Any:
    if isinstance(batch, bool | int | float):
        return torch.full((num_micro_batches,), batch)
    if type(batch) is list:
        return tuple(_with_tuples(item, num_micro_batches) for item in batch)
    if type(batch) is dict:
        return {key: _with_tuples(value, num_micro_batches) for key, value in batch.items()}
    return batch


def mean_loss(outputs: Any) -> Any:
    """Return what a training program returned, with the mean of the losses of its micro-batches."""
    if isinstance(outputs, Tensor):
        return outputs.float().mean()
    rest = {name: value for name, value in outputs.items() if name != "loss"}
    return {"loss": outputs["loss"].float().mean(), **map_tensors(torch.Tensor.detach, rest)}
