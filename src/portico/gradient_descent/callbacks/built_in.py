"""Callbacks that AllenNLP 2 brings along, by their registered names."""

import logging
from typing import Any

from portico.gradient_descent.callbacks.trainer_callback import TrainerCallback
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.tensorboard import TensorboardWriter

logger = logging.getLogger(__name__)


@TrainerCallback.register("track_epoch_callback")
class TrackEpochTrainerCallback(TrainerCallback):
    """Keeps the number of completed epochs in ``model.epoch``, for a ``forward`` that depends on it."""

    def on_start(self, trainer: Any, is_primary: bool = True, **kwargs: Any) -> None:
        """Set ``model.epoch`` to the epochs that are behind."""
        super().on_start(trainer, is_primary, **kwargs)
        trainer.model.epoch = trainer.progress.epochs_completed

    def on_epoch(
        self, trainer: Any, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        """Set ``model.epoch``."""
        trainer.model.epoch = epoch + 1


@TrainerCallback.register("should_validate_callback")
class ShouldValidateCallback(TrainerCallback):
    """Leaves validation out in some epochs; these neither count for the patience nor can be the best.

    Args:
        serialization_dir: Folder of the run.
        validation_start: First epoch that is validated, from 0.
        validation_interval: From there, every how many epochs one is.

    Raises:
        ConfigurationError: If a number is not allowed.
    """

    def __init__(
        self,
        serialization_dir: str | None = None,
        validation_start: int | None = None,
        validation_interval: int | None = None,
    ) -> None:
        super().__init__(serialization_dir)
        self._start = 0 if validation_start is None else validation_start
        self._interval = 1 if validation_interval is None else validation_interval
        if self._start < 0 or self._interval < 1:
            raise ConfigurationError(
                f"`validation_start={validation_start}` and `validation_interval={validation_interval}` cannot be "
                "used; set the first to an int >= 0 and the second to an int >= 1, or leave them out."
            )

    def on_start(self, trainer: Any, is_primary: bool = True, **kwargs: Any) -> None:
        """Decide about the first epoch."""
        super().on_start(trainer, is_primary, **kwargs)
        trainer.should_validate_this_epoch = self._is_due(trainer.progress.epochs_completed)

    def on_epoch(
        self, trainer: Any, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        """Decide about the next epoch."""
        trainer.should_validate_this_epoch = self._is_due(epoch + 1)

    def _is_due(self, epoch: int) -> bool:
        return epoch >= self._start and (epoch - self._start) % self._interval == 0


@TrainerCallback.register("tensorboard")
class TensorBoardCallback(TrainerCallback):
    """Has the trainer write to TensorBoard at intervals of its own.

    Args:
        serialization_dir: Folder of the run.
        summary_interval: See :class:`~portico.gradient_descent.tensorboard.TensorboardWriter`.
        distribution_interval: Its ``histogram_interval``.
        batch_size_interval: See there.
        should_log_parameter_statistics: See there.
        should_log_learning_rate: See there.
    """

    def __init__(
        self,
        serialization_dir: str | None = None,
        summary_interval: int = 100,
        distribution_interval: int | None = None,
        batch_size_interval: int | None = None,
        should_log_parameter_statistics: bool = True,
        should_log_learning_rate: bool = False,
    ) -> None:
        super().__init__(serialization_dir)
        self._writer = TensorboardWriter(
            serialization_dir,
            summary_interval,
            distribution_interval,
            batch_size_interval,
            should_log_parameter_statistics,
            should_log_learning_rate,
        )

    def on_start(self, trainer: Any, is_primary: bool = True, **kwargs: Any) -> None:
        """Put the writer into the trainer."""
        super().on_start(trainer, is_primary, **kwargs)
        trainer.use_tensorboard(self._writer)


@TrainerCallback.register("console_logger")
class ConsoleLoggerCallback(TrainerCallback):
    """Logs the metrics of each epoch as a table.

    Args:
        serialization_dir: Folder of the run.
        should_log_inputs: Log the shapes of the first training batch.
    """

    def __init__(self, serialization_dir: str | None = None, should_log_inputs: bool = False) -> None:
        super().__init__(serialization_dir)
        self._should_log_inputs = should_log_inputs

    def on_batch(self, batch_inputs: list[Any], is_training: bool, is_primary: bool = True, **kwargs: Any) -> None:  # type: ignore[override]
        """Log the first batch, if wanted."""
        if self._should_log_inputs and is_primary and is_training:
            self._should_log_inputs = False
            for name, value in batch_inputs[0].items():
                logger.info("Batch input %s: %s", name, tuple(getattr(value, "shape", ())) or value)

    def on_epoch(
        self, trainer: Any, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        """Log the table."""
        names = sorted({name.partition("_")[2] for name in metrics if name.startswith(("training_", "validation_"))})
        rows = [(name, metrics.get(f"training_{name}"), metrics.get(f"validation_{name}")) for name in names]
        if is_primary:
            logger.info("Epoch %d: %-20s | %10s | %10s", epoch, "metric", "training", "validation")
            for name, training, validation in rows:
                logger.info("%-20s | %10s | %10s", name, _short(training), _short(validation))


def _short(value: Any) -> str:
    return "N/A" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)
