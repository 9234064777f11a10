"""AllenNLP 2's callback: one object that is told of every event."""

from typing import Any

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.registry import Registrable
from portico.gradient_descent.trainer import Trainer


class OnBackwardException(ConfigurationError):
    """Two callbacks want to run the backward pass of the same batch."""


class TrainerCallback(Registrable):
    """Called at the start, around each batch and epoch, and at the end of training; does nothing by itself.

    A subclass may keep a state in ``state_dict``, with plain values and tensors, and take it back in
    ``load_state_dict`` when training is recovered. Its methods may leave out parameters that they do not use.

    Args:
        serialization_dir: Folder of the run.
    """

    def __init__(self, serialization_dir: str | None = None) -> None:
        self.serialization_dir = serialization_dir
        self.trainer: Trainer | None = None

    def on_start(self, trainer: Trainer, is_primary: bool = True, **kwargs: Any) -> None:
        """Look at the start of training, or of its continuation.

        Args:
            trainer: The trainer.
            is_primary: Whether this is the first process.
            **kwargs: Nothing yet.
        """
        self.trainer = trainer

    def on_backward(
        self, trainer: Trainer, batch_outputs: dict[str, Any], backward_called: bool, **kwargs: Any
    ) -> bool:
        """Run the backward pass of a training batch in the place of the trainer, if wanted.

        Args:
            trainer: The trainer.
            batch_outputs: What the model returned, the loss not yet divided for accumulation.
            backward_called: Whether another callback has run it.
            **kwargs: Nothing yet.

        Returns:
            Whether this callback has run it.

        Raises:
            OnBackwardException: If another callback has run it.
        """
        if backward_called:
            raise OnBackwardException(
                "Two callbacks would run the backward pass of the same batch; leave one of those with an "
                "`on_backward` out of `callbacks`."
            )
        return False

    def on_batch(
        self,
        trainer: Trainer,
        batch_inputs: list[Any],
        batch_outputs: list[dict[str, Any]],
        batch_metrics: dict[str, Any],
        epoch: int,
        batch_number: int,
        is_training: bool,
        is_primary: bool = True,
        batch_grad_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Look at a step, or a validation batch, as a ``BatchCallback`` does."""

    def on_epoch(
        self, trainer: Trainer, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        """Look at an epoch that has ended, as an ``EpochCallback`` does."""

    def on_end(
        self,
        trainer: Trainer,
        metrics: dict[str, Any] | None = None,
        epoch: int | None = None,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        """Look at the end of training, as an ``EndCallback`` does."""

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""


def runs_backward(callback: TrainerCallback) -> bool:
    """Return whether the class of ``callback`` has an ``on_backward`` of its own."""
    return type(callback).on_backward is not TrainerCallback.on_backward


TrainerCallback.register("null")(TrainerCallback)
