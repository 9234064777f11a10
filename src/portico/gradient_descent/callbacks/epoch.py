"""What is called at the end of each epoch, and at the end of training."""

from typing import Any

from portico.gradient_descent.registry import Registrable
from portico.gradient_descent.trainer import Trainer


class EpochCallback(Registrable):
    """Called before training with ``epoch=-1`` and after each epoch; does nothing by itself."""

    def __call__(
        self, trainer: Trainer, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        """Look at an epoch; parameters are passed by name, and ``is_primary`` may be called ``is_master``.

        Args:
            trainer: The trainer.
            metrics: Metrics of training so far, as ``train()`` returns them; empty before training.
            epoch: Epoch that has ended, from 0; -1 before training.
            is_primary: Whether this is the first process.
            **kwargs: Nothing yet.
        """


class EndCallback(Registrable):
    """Called once when training ends, in whatever way; does nothing by itself."""

    def __call__(
        self,
        trainer: Trainer,
        metrics: dict[str, Any] | None,
        epoch: int | None,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        """Look at the end of training; parameters are passed by name, as for an :class:`EpochCallback`.

        Args:
            trainer: The trainer.
            metrics: What ``train()`` returns; ``None`` if training failed.
            epoch: Last epoch, from 0; ``None`` if training failed.
            is_primary: Whether this is the first process.
            **kwargs: Nothing yet.
        """


@EpochCallback.register("track_epoch_callback")
class TrackEpochCallback(EpochCallback):
    """Keeps the number of completed epochs in ``model.epoch``, for a ``forward`` that depends on it."""

    def __call__(self, trainer: Trainer, epoch: int, **kwargs: Any) -> None:  # type: ignore[override]
        """Set ``model.epoch``."""
        trainer.model.epoch = epoch + 1  # type: ignore[assignment]


EpochCallback.register("null")(EpochCallback)
EndCallback.register("null")(EndCallback)
