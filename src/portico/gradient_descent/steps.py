"""What an AllenNLP trainer does with a batch and its gradients."""

from collections.abc import Mapping, MutableMapping
from typing import Any, cast

import torch

from portico.gradient_descent.callbacks import TrainerCallback
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.gradients import clip_gradients, rescale_gradients
from portico.gradient_descent.loop import LoopTrainer
from portico.gradient_descent.trainer import Trainer


class StepMethods(Trainer):
    """The steps of :class:`~portico.gradient_descent.gradient_descent_trainer.GradientDescentTrainer`."""

    loop: LoopTrainer
    backward_callbacks: list[TrainerCallback]
    _grad_norm: float | bool | None
    _grad_clipping: float | None

    def batch_outputs(self, batch: Any, for_training: bool) -> dict[str, Any]:
        """Run the model on a batch.

        Args:
            batch: The model's inputs by name.
            for_training: Add the regularization penalty to the loss, and keep it as ``"reg_loss"``.

        Raises:
            ConfigurationError: If the batch is no dict.
            RuntimeError: If there is no loss to train on.
        """
        if not isinstance(batch, MutableMapping):
            raise ConfigurationError(
                f"The data loader gave a {type(batch).__name__}; let it give dicts of the model's inputs by name."
            )
        inputs = self.loop._prepare_inputs(cast(dict[str, Any], batch))
        outputs: dict[str, Any] = self.loop.run_model(inputs, for_training=for_training)
        if not for_training:
            return outputs
        if not isinstance(outputs, Mapping) or "loss" not in outputs:
            raise RuntimeError(
                "The model you are trying to optimize does not contain a 'loss' key in the output of "
                "model.forward(inputs)."
            )
        get_penalty = getattr(self.model, "get_regularization_penalty", None)
        penalty = None if get_penalty is None else get_penalty()
        if penalty is not None:
            loss = outputs["loss"]
            outputs["reg_loss"] = penalty if torch.is_tensor(penalty) else loss.new_full((), penalty)
            outputs["loss"] = loss + outputs["reg_loss"]
        return outputs

    def rescale_gradients(self) -> float | None:
        """Scale the gradients down to ``grad_norm``; return the norm they had, if it is measured."""
        return rescale_gradients(self.model, self._grad_norm)

    def backward_by_callbacks(self, batch_outputs: dict[str, Any]) -> bool:
        """Let the callbacks run the backward pass of a training batch; tell whether one of them has."""
        backward_called = False
        for callback in self.backward_callbacks:
            backward_called |= callback.on_backward(self, batch_outputs, backward_called)
        return backward_called

    def clip_gradient(self) -> None:
        """Clamp the gradients, rescaled already, to ``grad_clipping``."""
        clip_gradients(self.model, self._grad_clipping)
