"""AllenNLP's callbacks: AllenNLP 1's classes for batches, epochs and the end, and AllenNLP 2's single class.

A callback is called with the arguments that it has parameters for, by name; ``is_primary`` may be called by its older
name ``is_master``.
"""

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import transformers
from torch import nn
from typing_extensions import override

from portico.gradient_descent.construction import ConfigurationError, Registrable, convert, parameters_of, takes_any
from portico.gradient_descent.metrics import gpu_memory_mb, peak_memory_mb
from portico.gradient_descent.tensorboard import TensorboardWriter

if TYPE_CHECKING:
    from portico.gradient_descent.trainer import GradientDescentTrainer

logger = logging.getLogger(__name__)

_OLDER_NAMES = {"is_master": "is_primary"}


class CallbackList:
    """Callbacks of one kind, each called with the ``known`` arguments that it has parameters for.

    Raises:
        ConfigurationError: If one cannot be called, or requires an argument that is not known.
    """

    def __init__(self, trainer: "GradientDescentTrainer", callbacks: Sequence[object], known: Collection[str]) -> None:
        self._trainer = trainer
        self._callbacks = [_bind_by_name(callback, known) for callback in callbacks]

    def __call__(self, **arguments: object) -> None:
        """Call every callback, in order, also with ``trainer`` and ``is_primary``."""
        arguments |= {"trainer": self._trainer, "is_primary": self._trainer.is_primary}
        for callback, wanted, takes_others in self._callbacks:
            chosen = arguments if takes_others else {}
            callback(**chosen | {name: arguments[source] for name, source in wanted.items() if source in arguments})


def _bind_by_name(callback: object, known: Collection[str]) -> tuple[Callable[..., Any], dict[str, str], bool]:
    """Return a callback, the arguments by its parameters' names, and whether it takes any other argument too."""
    if not callable(callback):
        raise ConfigurationError(
            f"The callback {callback!r} cannot be called; pass an object with `__call__`, or a registered name "
            "through `from_partial_objects`."
        )
    parameters = parameters_of(callback)
    wanted = {name: _OLDER_NAMES.get(name, name) for name in parameters}
    for name, source in wanted.items():
        if source not in known and parameters[name].default is inspect.Parameter.empty:
            raise ConfigurationError(
                f"The callback {type(callback).__name__} requires the unknown argument `{name}`; it may take: "
                f"{', '.join(known)}."
            )
    return callback, wanted, takes_any(inspect.signature(callback))


# ---- AllenNLP 1 (`self` is annotated so that AllenNLP 2's class can share the methods) ----


class BatchCallback(Registrable):
    """Called after each optimizer step of training and each batch of validation; does nothing by itself."""

    def __call__(
        self: Registrable,
        trainer: "GradientDescentTrainer",
        batch_inputs: list[Any],
        batch_outputs: list[dict[str, Any]],
        batch_metrics: dict[str, Any],
        epoch: int,
        batch_number: int,
        is_training: bool,
        is_primary: bool = True,
        batch_grad_norm: float | None = None,
        **kwargs: object,
    ) -> None:
        """Handle a step.

        Args:
            trainer: The trainer.
            batch_inputs: Batches of the step, as many as are accumulated; one in validation.
            batch_outputs: What the model returned for each.
            batch_metrics: Metrics of the epoch so far.
            epoch: Epoch, from 0.
            batch_number: Steps of the epoch so far, from 1; in validation the batches that had a loss.
            is_training: Whether this is training.
            is_primary: Whether this is the first process.
            batch_grad_norm: Norm of the gradients; ``None`` unless it was measured in training.
            **kwargs: Arguments of later versions.
        """


class EpochCallback(Registrable):
    """Called before training with ``epoch=-1`` and after each epoch; does nothing by itself."""

    def __call__(
        self: Registrable,
        trainer: "GradientDescentTrainer",
        metrics: dict[str, Any],
        epoch: int,
        is_primary: bool = True,
        **kwargs: object,
    ) -> None:
        """Handle the end of an epoch, from 0; -1 before training.

        ``metrics`` are those so far, as ``train()`` returns them; empty before training.
        """


class EndCallback(Registrable):
    """Called once when training ends, also by an error; does nothing by itself."""

    def __call__(
        self: Registrable,
        trainer: "GradientDescentTrainer",
        metrics: dict[str, Any] | None = None,
        epoch: int | None = None,
        is_primary: bool = True,
        **kwargs: object,
    ) -> None:
        """Handle the end; ``metrics`` (see ``train()``) and the last ``epoch`` are ``None`` if training failed."""


@BatchCallback.register("tensorboard-memory-usage")
class TensorboardBatchMemoryUsage(BatchCallback):
    """Writes the memory of every process and GPU to TensorBoard at every batch. Slow; for debugging."""

    @override
    def __call__(  # type: ignore[override]
        self, trainer: "GradientDescentTrainer", is_primary: bool = True, **kwargs: object
    ) -> None:
        # Every process takes part in measuring.
        workers = peak_memory_mb(trainer.accelerator)
        writer = trainer.tensorboard_writer
        if is_primary and writer is not None:
            writer.log_memory_usage(workers, gpu_memory_mb())


# AllenNLP 1's spelling.
TensoboardBatchMemoryUsage = TensorboardBatchMemoryUsage


@EpochCallback.register("track_epoch_callback")
class TrackEpochCallback(EpochCallback):
    """Keeps the number of completed epochs in ``model.epoch``, for a ``forward`` that depends on it."""

    @override
    def __call__(
        self: Registrable,
        trainer: "GradientDescentTrainer",
        metrics: dict[str, Any],
        epoch: int,
        is_primary: bool = True,
        **kwargs: object,
    ) -> None:
        model: Any = trainer.model
        model.epoch = epoch + 1


# ---- AllenNLP 2 ----


class OnBackwardException(ConfigurationError):
    """Two callbacks want to run the backward pass of the same batch."""


class TrainerCallback(Registrable):
    """Called at the start, around each batch and epoch, and at the end of training; does nothing by itself.

    A subclass may return a state of plain values and tensors in ``state_dict``, which ``load_state_dict`` gets back
    when training is recovered. Its methods may leave out parameters that they do not use. See
    :class:`BatchCallback` for the parameters of ``on_batch``, :class:`EpochCallback` for ``on_epoch``, and
    :class:`EndCallback` for ``on_end``.
    """

    # The trainer takes all of these as `callbacks`.
    _accepted = (transformers.TrainerCallback, pl.Callback)

    def __init__(self, serialization_dir: str | None = None) -> None:
        self.serialization_dir = serialization_dir
        self.trainer: GradientDescentTrainer | None = None

    def on_start(self, trainer: "GradientDescentTrainer", is_primary: bool = True, **kwargs: object) -> None:
        """Handle the start of training, or its recovery."""
        self.trainer = trainer

    def on_backward(
        self, trainer: "GradientDescentTrainer", batch_outputs: dict[str, Any], backward_called: bool, **kwargs: object
    ) -> bool:
        """Run the backward pass of a training batch, if the trainer should not; return whether this callback ran it.

        The loss in ``batch_outputs`` is not yet divided for accumulation. ``backward_called`` means that another
        callback has run the pass; running it twice raises ``OnBackwardException``.
        """
        if backward_called:
            raise OnBackwardException(
                "Two callbacks would run the backward pass of the same batch; remove one of those with an "
                "`on_backward` from `callbacks`."
            )
        return False

    on_batch = BatchCallback.__call__
    on_epoch = EpochCallback.__call__
    on_end = EndCallback.__call__

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in checkpoints."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state returned by :meth:`state_dict`."""


@TrainerCallback.register("track_epoch_callback")
class TrackEpochTrainerCallback(TrainerCallback):
    """Keeps the number of completed epochs in ``model.epoch``, for a ``forward`` that depends on it."""

    @override
    def on_start(self, trainer: "GradientDescentTrainer", is_primary: bool = True, **kwargs: object) -> None:
        super().on_start(trainer, is_primary, **kwargs)
        model: Any = trainer.model
        model.epoch = trainer.progress.epochs_completed

    on_epoch = TrackEpochCallback.__call__


@TrainerCallback.register("should_validate_callback")
class ShouldValidateCallback(TrainerCallback):
    """Skips validation in some epochs; these neither count towards the patience nor can be the best.

    As in AllenNLP, epochs from ``validation_start`` on are validated, counted from 0, whose number is a multiple of
    ``validation_interval``.
    """

    def __init__(
        self,
        serialization_dir: str | None = None,
        validation_start: int | None = None,
        validation_interval: int | None = None,
    ) -> None:
        super().__init__(serialization_dir)
        self._start = validation_start or 0
        self._interval = 1 if validation_interval is None else validation_interval
        if self._start < 0 or self._interval < 1:
            raise ConfigurationError(
                f"`validation_start={validation_start}` and `validation_interval={validation_interval}` cannot be "
                "used; set the first to an int >= 0 and the second to an int >= 1, or leave them out."
            )

    @override
    def on_start(self, trainer: "GradientDescentTrainer", is_primary: bool = True, **kwargs: object) -> None:
        super().on_start(trainer, is_primary, **kwargs)
        trainer.should_validate_this_epoch = self._is_due(trainer.progress.epochs_completed)

    @override
    def on_epoch(
        self,
        trainer: "GradientDescentTrainer",
        metrics: dict[str, Any],
        epoch: int,
        is_primary: bool = True,
        **kwargs: object,
    ) -> None:
        trainer.should_validate_this_epoch = self._is_due(epoch + 1)

    def _is_due(self, epoch: int) -> bool:
        return epoch >= self._start and epoch % self._interval == 0


@TrainerCallback.register("tensorboard")
class TensorBoardCallback(TrainerCallback):
    """Replaces the trainer's TensorBoard writer.

    Takes the arguments of :class:`~portico.gradient_descent.tensorboard.TensorboardWriter`, which calls
    ``distribution_interval`` ``histogram_interval``.
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

    @override
    def on_start(self, trainer: "GradientDescentTrainer", is_primary: bool = True, **kwargs: object) -> None:
        super().on_start(trainer, is_primary, **kwargs)
        trainer.use_tensorboard(self._writer)


@TrainerCallback.register("console_logger")
class ConsoleLoggerCallback(TrainerCallback):
    """Logs the metrics of each epoch as a table, and with ``should_log_inputs`` the shapes of the first batch."""

    def __init__(self, serialization_dir: str | None = None, should_log_inputs: bool = False) -> None:
        super().__init__(serialization_dir)
        self._should_log_inputs = should_log_inputs

    @override
    def on_batch(  # type: ignore[override]
        self, batch_inputs: list[Any], is_training: bool, is_primary: bool = True, **kwargs: object
    ) -> None:
        if self._should_log_inputs and is_primary and is_training:
            self._should_log_inputs = False
            for name, value in batch_inputs[0].items():
                logger.info("Batch input %s: %s", name, tuple(getattr(value, "shape", ())) or value)

    @override
    def on_epoch(
        self,
        trainer: "GradientDescentTrainer",
        metrics: dict[str, Any],
        epoch: int,
        is_primary: bool = True,
        **kwargs: object,
    ) -> None:
        if not is_primary:
            return
        names = sorted({name.partition("_")[2] for name in metrics if name.startswith(("training_", "validation_"))})
        logger.info("Epoch %d: %-20s | %10s | %10s", epoch, "metric", "training", "validation")
        for name in names:
            values = [metrics.get(f"{kind}_{name}") for kind in ("training", "validation")]
            columns = [f"{value:.4g}" if isinstance(value, int | float) else value or "N/A" for value in values]
            logger.info("%-20s | %10s | %10s", name, *columns)


class ConfidenceCheckError(ConfigurationError):
    """A model has failed a check of :class:`ConfidenceChecksCallback`."""


@TrainerCallback.register("confidence_checks")
class ConfidenceChecksCallback(TrainerCallback):
    """Refuses a model in which a layer with a trained bias runs right before a normalization layer.

    The normalization makes the bias ineffective, which can make training unstable. The first forward pass shows which
    layers run one after the other.

    Raises:
        ConfidenceCheckError: In the first forward pass, if there are such layers.

    Source: ``NormalizationBiasVerification`` of AllenNLP 2.
    """

    _normalizations = (
        nn.modules.batchnorm._BatchNorm,
        nn.modules.instancenorm._InstanceNorm,
        nn.GroupNorm,
        nn.LayerNorm,
    )

    @override
    def on_start(self, trainer: "GradientDescentTrainer", is_primary: bool = True, **kwargs: object) -> None:
        super().on_start(trainer, is_primary, **kwargs)
        names = {module: name for name, module in trainer.model.named_modules()}
        ran: list[nn.Module] = []
        hooks = [module.register_forward_hook(lambda module, *_: ran.append(module)) for module in names]

        def check(*_: object) -> None:
            for hook in hooks:
                hook.remove()
            pairs = [
                f"`{names[module]}` before `{names[following]}`"
                for module, following in pairwise(ran)
                if isinstance(following, self._normalizations)
                and following.training
                and getattr(getattr(module, "bias", None), "requires_grad", False)
            ]
            if pairs:
                raise ConfidenceCheckError(
                    f"The model has layers with a bias right before a normalization, which makes the bias "
                    f"ineffective: {', '.join(dict.fromkeys(pairs))}; set `bias=False` in the first of each, remove "
                    "the normalization, or switch this check off (`run_confidence_checks`, or 'confidence_checks' in "
                    "`callbacks`)."
                )

        hooks.append(trainer.model.register_forward_hook(check))


# ---- The arguments of the trainer that take callbacks ----

_KINDS: Mapping[str, type[Registrable]] = {
    "batch_callbacks": BatchCallback,
    "epoch_callbacks": EpochCallback,
    "end_callbacks": EndCallback,
    "callbacks": TrainerCallback,
}
for _base in _KINDS.values():
    _base.register("null")(_base)


def construct_callbacks(serialization_dir: str | None, **given: Sequence[object] | None) -> dict[str, Any]:
    """Return lists of callbacks, or of their configurations, as lists of callbacks, by the names of arguments."""
    extras = {"serialization_dir": serialization_dir}
    return {name: convert(GenericAlias(list, (_KINDS[name],)), each, name, extras) for name, each in given.items()}


def sort_callbacks(callbacks: Sequence[object]) -> tuple[list[TrainerCallback], list[Any], list[pl.Callback]]:
    """Return AllenNLP's, Hugging Face's and Lightning's callbacks; raise ``ConfigurationError`` for other objects."""
    found: dict[type, list[Any]] = {TrainerCallback: [], transformers.TrainerCallback: [], pl.Callback: []}
    for callback in callbacks:
        kind = next((kind for kind in found if isinstance(callback, kind)), None)
        # Hugging Face takes classes too.
        if isinstance(callback, type) and issubclass(callback, transformers.TrainerCallback):
            kind = transformers.TrainerCallback
        if kind is None:
            raise ConfigurationError(
                f"`callbacks` holds {callback!r}, which is neither a callback of Hugging Face or Lightning nor a "
                "`TrainerCallback` of AllenNLP 2; callbacks of AllenNLP 1 go to `batch_callbacks`, `epoch_callbacks` "
                "and `end_callbacks`, and names and dicts to `from_partial_objects`."
            )
        found[kind].append(callback)
    return found[TrainerCallback], found[transformers.TrainerCallback], found[pl.Callback]
