"""A model of ``transformers`` as a program: tensors in, a dict of tensors out, its loss marked."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from portico.errors import InputError
from portico.hf_compat import LabelSmoother
from portico.ipu import backend

LossFunction = Callable[[Any, Any], Any]


class DeviceProgram(nn.Module):
    """Calls a model, and returns what a device can.

    Args:
        model: The model.
        loss_function: Computes the loss of the model's outputs and the labels, instead of the model; it has to be part
            of the program to be trained on.
        training: Whether the program trains, and so needs a loss.
    """

    def __init__(self, model: nn.Module, *, loss_function: LossFunction | None = None, training: bool = False) -> None:
        super().__init__()
        self.model = model
        self.train(training)
        self._loss_function = loss_function
        self._needs_loss = training

    def forward(self, **inputs: Tensor) -> dict[str, Any]:
        """Return the tensors among the model's outputs by name, the loss first.

        Raises:
            InputError: If a program that trains has no loss.
        """
        labels = inputs.pop("labels", None) if self._loss_function is not None else None
        outputs = _by_name(self.model(**inputs))
        if self._loss_function is not None and labels is not None:
            outputs["loss"] = self._loss_function(outputs, labels)
        loss = outputs.pop("loss", None)
        if isinstance(loss, Tensor):
            return {"loss": backend.identity_loss(loss, "none"), **outputs}
        if self._needs_loss:
            raise InputError(
                f"The model returned no loss, only {', '.join(outputs) or 'nothing'}; it received "
                f"{', '.join(inputs)}. Give it labels under the name it takes, or a `compute_loss_func`: on IPUs the "
                "loss is part of the program, and computing it in `compute_loss` would train nothing."
            )
        return outputs


def program_loss(
    label_smoother: LabelSmoother | None, compute_loss_func: Any, *, shifts_labels: bool
) -> LossFunction | None:
    """Return the loss that is computed inside the program, of the outputs and the labels; ``None`` for the model's.

    Args:
        label_smoother: Smooths the labels.
        compute_loss_func: The user's; it wins.
        shifts_labels: Whether the loss is that of the next token.
    """
    if compute_loss_func is not None:
        return lambda outputs, labels: compute_loss_func(outputs, labels, num_items_in_batch=None)
    if label_smoother is not None:
        return lambda outputs, labels: label_smoother(outputs, labels, shift_labels=shifts_labels)
    return None


def _by_name(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, dict):
        named = dict(outputs)
    elif isinstance(outputs, list | tuple):
        named = {"loss" if index == 0 else f"output_{index}": value for index, value in enumerate(outputs)}
    else:
        named = {"loss": outputs}
    # Caches and nothings cannot leave a device.
    return {name: value for name, value in named.items() if _is_of_tensors(value)}


def _is_of_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_of_tensors(item) for item in value)
    return isinstance(value, Tensor)
