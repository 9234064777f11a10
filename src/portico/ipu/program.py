"""Programs on IPUs: the modules that are compiled, and the pool that attaches one compiled program at a time."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from portico.compat.annotations import Nested
from portico.compat.tree import map_tensors
from portico.errors import InputError
from portico.ipu import backend

LossFunction = Callable[[Any, Any], Any]


class ProgramPool:
    """Keeps the programs of a run, and attaches only the one in use to the IPUs."""

    def __init__(self) -> None:
        self._programs: list[backend.PoplarExecutor] = []

    def add(self, program: "backend.PoplarExecutor") -> "backend.PoplarExecutor":
        self._programs.append(program)
        return program

    def attach(self, program: "backend.PoplarExecutor") -> "backend.PoplarExecutor":
        """Detach all other programs, attach this one if it is compiled, and return it."""
        self.release(kept=program)
        if program.isCompiled() and not program.isAttachedToDevice():
            program.attachToDevice()
        return program

    def release(self, kept: "backend.PoplarExecutor | None" = None) -> None:
        """Detach all programs but ``kept``."""
        for program in self._programs:
            if program is not kept and program.isCompiled() and program.isAttachedToDevice():
                program.detachFromDevice()

    def upload_weights(self) -> None:
        """Copy the weights to the program that is attached; the others get them when they are attached."""
        for program in self._programs:
            if program.isCompiled() and program.isAttachedToDevice():
                program.copyWeightsToDevice()

    def destroy(self) -> None:
        for program in self._programs:
            program.destroy()
        self._programs.clear()


# ---- Models of transformers ----


class DeviceProgram(nn.Module):
    """A model of ``transformers`` as a program: takes tensors, returns a dict of tensors, and marks its loss."""

    def __init__(self, model: nn.Module, *, loss_function: LossFunction | None = None, training: bool = False) -> None:
        super().__init__()
        self.model = model
        self.train(training)
        self._loss_function = loss_function
        self._needs_loss = training

    def forward(self, **inputs: Tensor) -> dict[str, Any]:
        """Return the tensors among the model's outputs by name, the loss first."""
        labels = inputs.pop("labels", None) if self._loss_function is not None else None
        outputs = _tensors_by_name(self.model(**inputs))
        if self._loss_function is not None and labels is not None:
            outputs["loss"] = self._loss_function(outputs, labels)
        loss = outputs.pop("loss", None)
        if isinstance(loss, Tensor):
            # The mark by which `poptorch` finds the loss; the model has reduced it already.
            return {"loss": backend.identity_loss(loss, "none"), **outputs}
        if self._needs_loss:
            raise InputError(
                "The model did not return a loss from the inputs, only the following keys: "
                f"{','.join(outputs)}. For reference, the inputs it received are {','.join(inputs)}. Give it labels "
                "under the name it takes, or a `compute_loss_func`: on IPUs the loss is part of the program, and "
                "computing it in `compute_loss` would train nothing."
            )
        return outputs


def _tensors_by_name(outputs: Nested) -> dict[str, Any]:
    if isinstance(outputs, dict):
        named = dict(outputs)
    elif isinstance(outputs, list | tuple):
        named = {"loss" if index == 0 else f"output_{index}": value for index, value in enumerate(outputs)}
    else:
        named = {"loss": outputs}
    # Caches and None cannot leave a device.
    return {name: value for name, value in named.items() if _holds_tensors(value)}


def _holds_tensors(value: Nested) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_holds_tensors, value))
    return isinstance(value, Tensor)


class ModelOnIPUs(nn.Module):
    """Takes the place of a trainer's model: calls run through ``call_model``, attributes come from ``model``."""

    def __init__(self, call_model: Callable[..., dict[str, Any]], model: nn.Module, *, training: bool) -> None:
        super().__init__()
        self.module = model
        self._call_model = call_model
        self._is_training = training

    def forward(self, **inputs: Nested) -> dict[str, Any]:
        return self._call_model(self.module, inputs, is_training=self._is_training)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


# ---- Steps of a LightningModule ----


class TracedStep(nn.Module):
    """One ``..._step`` of a ``LightningModule`` as a program, which marks the loss that a training step returns."""

    def __init__(self, module: pl.LightningModule, step_name: str) -> None:
        super().__init__()
        self.module = module
        self.step_name = step_name
        self._has_warned = False

    def forward(self, batch: Nested, batch_idx: Tensor, *rest: Tensor) -> Nested:
        """Run the step; indices come as tensors with one element for each micro-batch."""
        scalars = [index.reshape(-1)[0] for index in (batch_idx, *rest)]
        module: pl.LightningModule = self.module
        # Python runs only once on a device, at compilation, so every logged value would come from the first batch.
        module.__dict__["log"] = self._warn_not_logged
        try:
            outputs = getattr(module, self.step_name)(batch, *scalars)
        finally:
            del module.__dict__["log"]
        if self.step_name != "training_step":
            return outputs
        if isinstance(outputs, Tensor):
            return backend.identity_loss(outputs, "none")
        if isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor):
            return {**outputs, "loss": backend.identity_loss(outputs["loss"], "none")}
        raise InputError(
            f"`training_step` returned {type(outputs).__name__}; on IPUs it must return the loss, or a dict with the "
            "loss under 'loss', for every batch."
        )

    def _warn_not_logged(self, name: str, *args: object, **kwargs: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"`self.log({name!r}, ...)` in `{self.step_name}` has no effect: the step is compiled into a program, "
                "which cannot log. Log what the step returns, in `on_train_batch_end` or another hook.",
                UserWarning,
                stacklevel=3,
            )


def step_arguments(batch: Nested, indices: tuple[int, ...], num_micro_batches: int) -> tuple[Any, ...]:
    """Return the arguments of a :class:`TracedStep`: lists become tuples, and numbers tensors with one row each.

    A Python number would be compiled into the program as a constant.
    """
    numbers = [torch.full((num_micro_batches,), index, dtype=torch.int32) for index in indices]
    return (_convert_to_inputs(batch, num_micro_batches), *numbers)


def _convert_to_inputs(batch: Nested, num_micro_batches: int) -> Nested:
    if isinstance(batch, bool | int | float):
        return torch.full((num_micro_batches,), batch)
    if type(batch) is list:
        return tuple(_convert_to_inputs(item, num_micro_batches) for item in batch)
    if type(batch) is dict:
        return {key: _convert_to_inputs(value, num_micro_batches) for key, value in batch.items()}
    return batch


def mean_loss(outputs: Nested) -> Nested:
    """Return the outputs of a training program, with the mean of the losses of its micro-batches."""
    if isinstance(outputs, Tensor):
        return outputs.float().mean()
    rest = {name: value for name, value in outputs.items() if name != "loss"}
    return {"loss": outputs["loss"].float().mean(), **map_tensors(torch.Tensor.detach, rest)}
