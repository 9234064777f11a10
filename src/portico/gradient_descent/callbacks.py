"""Callbacks called with the parameters that they have."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from portico.gradient_descent.construction import Registrable, takes_any
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.metrics import gpu_memory_mb, peak_memory_mb
from portico.gradient_descent.tensorboard import TensorboardWriter

if TYPE_CHECKING:
    from portico.gradient_descent.trainer import Trainer

_OLDER_NAMES = {"is_master": "is_primary"}


class CallbackList:
    """Callbacks of one kind, each called with those of the known arguments that it has parameters for.

    Args:
        callbacks: Callable objects.
        known: Names of the arguments they may take.

    Raises:
        ConfigurationError: If one cannot be called, or requires an argument that is not known.
    """

    def __init__(self, callbacks: Sequence[Any], known: Sequence[str]) -> None:
        self.callbacks = list(callbacks)
        self._adapters = [_adapter(callback, known) for callback in callbacks]

    def __call__(self, **arguments: Any) -> None:
        """Call every callback, in order."""
        for adapt in self._adapters:
            adapt(arguments)


def _adapter(callback: Any, known: Sequence[str]) -> Callable[[Mapping[str, Any]], None]:
    if not callable(callback):
        raise ConfigurationError(
            f"The callback {callback!r} cannot be called; give an object with `__call__`, or a registered name "
            "through `from_partial_objects`."
        )
    signature = inspect.signature(callback)
    wanted = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    ]
    for name in wanted:
        source = _OLDER_NAMES.get(name, name)
        if source not in known and signature.parameters[name].default is inspect.Parameter.empty:
            raise ConfigurationError(
                f"The callback {type(callback).__name__} requires the argument `{name}`, which is not known; it may "
                f"take: {', '.join(known)}."
            )
    everything = takes_any(signature)

    def call(arguments: Mapping[str, Any]) -> None:
        chosen = dict(arguments) if everything else {}
        for name in wanted:
            source = _OLDER_NAMES.get(name, name)
            if source in arguments:
                chosen[name] = arguments[source]
        callback(**chosen)

    return call


class BatchCallback(Registrable):
    """Called after each optimizer step of training and after each batch of validation; does nothing by itself."""

    def __call__(
        self,
        trainer: "Trainer",
        batch_inputs: list[Any],
        batch_outputs: list[dict[str, Any]],
        batch_metrics: dict[str, Any],
        epoch: int,
        batch_number: int,
        is_training: bool,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        """Look at a batch.

        A callback of your own may leave out parameters that it does not use, and may call ``is_primary`` by its older
        name ``is_master``; parameters are passed by name.

        Args:
            trainer: The trainer.
            batch_inputs: Batches of the step: as many as gradients are accumulated over, one in validation.
            batch_outputs: What the model returned for each.
            batch_metrics: Metrics of the epoch so far.
            epoch: Epoch, from 0.
            batch_number: Steps of the epoch so far, from 1; in validation batches that had a loss.
            is_training: Whether this is training.
            is_primary: Whether this is the first process.
            **kwargs: ``batch_grad_norm``, the norm of the gradients, ``None`` unless it was measured in training.
        """


@BatchCallback.register("tensorboard-memory-usage")
class TensorboardBatchMemoryUsage(BatchCallback):
    """Writes the memory of every process and GPU to TensorBoard, at every batch. Slow; for debugging."""

    def __call__(self, trainer: "Trainer", is_primary: bool = True, **kwargs: Any) -> None:  # type: ignore[override]
        """Measure and write; every process must take part in measuring."""
        workers = peak_memory_mb(trainer)
        writer = trainer.tensorboard_writer
        if is_primary and writer is not None:
            writer.log_memory_usage(workers, gpu_memory_mb())


# AllenNLP's spelling.
TensoboardBatchMemoryUsage = TensorboardBatchMemoryUsage

BatchCallback.register("null")(BatchCallback)


class EpochCallback(Registrable):
    """Called before training with ``epoch=-1`` and after each epoch; does nothing by itself."""

    def __call__(
        self, trainer: "Trainer", metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
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
        trainer: "Trainer",
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

    def __call__(self, trainer: "Trainer", epoch: int, **kwargs: Any) -> None:  # type: ignore[override]
        """Set ``model.epoch``."""
        trainer.model.epoch = epoch + 1  # type: ignore[assignment]


EpochCallback.register("null")(EpochCallback)
EndCallback.register("null")(EndCallback)


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

    def on_start(self, trainer: "Trainer", is_primary: bool = True, **kwargs: Any) -> None:
        """Look at the start of training, or of its continuation.

        Args:
            trainer: The trainer.
            is_primary: Whether this is the first process.
            **kwargs: Nothing yet.
        """
        self.trainer = trainer

    def on_backward(
        self, trainer: "Trainer", batch_outputs: dict[str, Any], backward_called: bool, **kwargs: Any
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
        trainer: "Trainer",
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
        self, trainer: "Trainer", metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        """Look at an epoch that has ended, as an ``EpochCallback`` does."""

    def on_end(
        self,
        trainer: "Trainer",
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
    """Tell whether the class of ``callback`` has an ``on_backward`` of its own."""
    return type(callback).on_backward is not TrainerCallback.on_backward


TrainerCallback.register("null")(TrainerCallback)


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
