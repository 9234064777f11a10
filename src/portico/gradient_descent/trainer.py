"""AllenNLP's trainers: ``GradientDescentTrainer`` over Lightning, and ``NoOpTrainer``."""

import json
import logging
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from portico.arguments import TrainingArguments
from portico.gradient_descent.arguments import (
    check_counts,
    check_limits,
    check_trainer_parts,
    construct_parts,
    resolve_placement,
    resolve_precision,
)
from portico.gradient_descent.callbacks import (
    BatchCallback,
    CallbackList,
    ConfidenceChecksCallback,
    ConsoleLoggerCallback,
    EndCallback,
    EpochCallback,
    TrainerCallback,
    construct_callbacks,
    sort_callbacks,
)
from portico.gradient_descent.checkpointer import BestWeights, Checkpointer, TrainerCheckpoint, check_folder
from portico.gradient_descent.construction import ConfigurationError, Lazy, Registrable, parameters_of
from portico.gradient_descent.metrics import MetricTracker, ModelMetrics, TrainingReport, dump_metrics, epoch_metrics
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.optimizers import RegistrableOptimizer
from portico.gradient_descent.run import PARTS_TURNED_OFF, LoopTrainer, Progress, capture_training, restore_training
from portico.gradient_descent.schedulers import (
    LearningRateScheduler,
    MomentumScheduler,
    Scheduler,
    refuse_without_metric,
    wrap_scheduler,
)
from portico.gradient_descent.tensorboard import TensorboardWriter, tensorboard_is_installed
from portico.trust.disk import remove_stale_staging
from portico.unknown_arguments import names_unknown_arguments

logger = logging.getLogger(__name__)


class RegistrableTrainer(Registrable):
    """Base class of the trainers that a configuration can name."""

    default_implementation: ClassVar[str | None] = "gradient_descent"
    progress: Progress

    @property
    @abstractmethod
    def is_primary(self) -> bool:
        """Whether this is the first process."""

    @abstractmethod
    def train(self) -> dict[str, Any]:
        """Train, and return the metrics."""

    @abstractmethod
    def get_checkpoint_state(self) -> TrainerCheckpoint | None:
        """Return the states of model and training to save, ``None`` in processes that do not save.

        Every process must call it.
        """

    @abstractmethod
    def batch_outputs(self, batch: Mapping[str, Any], for_training: bool) -> dict[str, Any]:
        """Run the model on a batch."""


# AllenNLP's name.
Trainer = RegistrableTrainer


@RegistrableTrainer.register("gradient_descent", constructor="from_partial_objects")
class GradientDescentTrainer(RegistrableTrainer):
    """Trains a model by gradient descent, as AllenNLP's trainer of this name does, in Lightning's loops.

    A model is any module whose ``forward`` returns a dict with ``"loss"``, as in transformers. It may have
    ``get_metrics(reset)``, which returns numbers by name, and ``get_regularization_penalty()``. What it has counted
    for its metrics is part of a checkpoint, see :class:`~portico.gradient_descent.metrics.ModelMetrics`.

    Names are AllenNLP 1's. Where the versions differ, the semantics are AllenNLP 2's: gradients are
    clipped once per step, after they are rescaled; a run that stops early records its last epoch; recovery is exact.

    Args:
        model: The model.
        optimizer: Optimizer of its parameters.
        no_grad: Regular expressions of names of parameters that are not trained (``from_partial_objects`` only).
        data_loader: Training batches, dicts of the model's inputs.
        patience: Epochs without improvement after which training stops; ``None`` never stops it.
        validation_metric: Metric to improve: ``+`` or ``-`` and its name; of a list the signed sum counts.
        validation_data_loader: Validation batches.
        num_epochs: Passes over the data.
        serialization_dir: Folder for checkpoints, metrics and TensorBoard. Training resumes from the latest checkpoint
            in it; without a folder nothing is kept.
        checkpointer: Writes checkpoints; by default at the end of each epoch, keeping two.
        cuda_device: Index of a GPU, -1 for the CPU; by default what Lightning finds.
        grad_norm: Largest norm of all gradients; ``True`` only measures the norm.
        grad_clipping: Largest absolute value in a gradient.
        learning_rate_scheduler: Scheduler, of AllenNLP or of torch.
        momentum_scheduler: Scheduler of the momentum.
        tensorboard_writer: Writer for TensorBoard; by default one with AllenNLP's intervals, if there is a folder and
            TensorBoard is installed.
        moving_average: Averages that are validated and saved instead of the weights.
        batch_callbacks: Called after each step and each validation batch.
        epoch_callbacks: Called before training (epoch -1) and after each epoch.
        distributed: Train on ``world_size`` processes, which Lightning starts.
        local_rank: Accepted for compatibility; Lightning numbers the processes.
        world_size: Number of processes, on all machines together; without ``distributed`` it starts none.
        num_gradient_accumulation_steps: Batches of an optimizer step; the last step of an epoch may have fewer.
        opt_level: Precision in the words of Apex, ``"O0"`` to ``"O3"``.
        use_amp: Mixed precision, AllenNLP 2's word for ``opt_level="O1"``.
        end_callbacks: Called when training ends.
        callbacks: Callbacks of AllenNLP 2, of Hugging Face and of Lightning.
        loggers: Lightning loggers; they get the metrics of each epoch.
        plugins: Lightning plugins.
        accelerator: Lightning accelerator.
        strategy: Lightning strategy.
        devices: Devices of this machine, one process each.
        num_nodes: Number of machines.
        precision: Lightning precision.
        grad_scaling: Must be true with ``use_amp``; Lightning's mixed precision always scales the loss.
        enable_default_callbacks: Log a table of metrics after each epoch, as ``"console_logger"`` does. Off by
            default.
        run_confidence_checks: Refuse a model that fails :class:`~portico.gradient_descent.ConfidenceChecksCallback`.
            Off by default; AllenNLP 2 checks.

    Attributes:
        loop: The Hugging Face trainer underneath.
        report: Metrics of the current training, or of the last.

    Raises:
        ConfigurationError: If the arguments cannot be used, before anything is written.
    """

    loop: LoopTrainer
    report: TrainingReport
    serialization_dir: Path | None
    # A callback may turn it off for an epoch.
    should_validate_this_epoch: bool = True
    # What a checkpoint holds, for the run to restore once the parts exist.
    restored: dict[str, Any] | None = None

    @names_unknown_arguments
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Iterable[Any],
        patience: int | None = None,
        validation_metric: str | list[str] = "-loss",
        validation_data_loader: Iterable[Any] | None = None,
        num_epochs: int = 20,
        serialization_dir: str | Path | None = None,
        checkpointer: Checkpointer | None = None,
        cuda_device: int | torch.device | None = None,
        grad_norm: float | bool | None = None,
        grad_clipping: float | None = None,
        learning_rate_scheduler: LearningRateScheduler | None = None,
        momentum_scheduler: MomentumScheduler | None = None,
        tensorboard_writer: TensorboardWriter | None = None,
        moving_average: MovingAverage | None = None,
        batch_callbacks: Sequence[BatchCallback] | None = None,
        epoch_callbacks: Sequence[EpochCallback] | None = None,
        distributed: bool = False,
        local_rank: int = 0,
        world_size: int = 1,
        num_gradient_accumulation_steps: int = 1,
        opt_level: str | None = None,
        use_amp: bool = False,
        end_callbacks: Sequence[EndCallback] | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        loggers: Sequence[Any] | None = None,
        plugins: Sequence[Any] | None = None,
        accelerator: str | None = None,
        strategy: str | None = None,
        devices: int | list[int] | None = None,
        num_nodes: int | None = None,
        precision: str | None = None,
        grad_scaling: bool = True,
        enable_default_callbacks: bool = False,
        run_confidence_checks: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.data_loader = data_loader
        self.validation_data_loader = validation_data_loader
        self.moving_average = moving_average
        self.learning_rate_scheduler = wrap_scheduler(learning_rate_scheduler)
        self.momentum_scheduler = momentum_scheduler
        self.tensorboard_writer = tensorboard_writer
        self.checkpointer = Checkpointer() if checkpointer is None else checkpointer
        self.num_epochs = num_epochs
        self.num_gradient_accumulation_steps = num_gradient_accumulation_steps
        self.world_size = world_size
        self.is_distributed = distributed
        self.metric_tracker = MetricTracker(validation_metric, patience)
        check_limits(grad_norm=grad_norm, grad_clipping=grad_clipping)
        self._grad_norm = grad_norm
        self._grad_clipping = grad_clipping
        self._check(patience)
        chosen = {"accelerator": accelerator, "strategy": strategy, "devices": devices, "num_nodes": num_nodes}
        placement = resolve_placement(cuda_device, distributed, world_size, chosen)
        placement |= resolve_precision(opt_level, use_amp, grad_scaling, precision, placement.get("accelerator"))
        others = list(callbacks or ())
        if enable_default_callbacks:
            others.append(ConsoleLoggerCallback())
        if run_confidence_checks:
            others.append(ConfidenceChecksCallback())
        parts = self._set_callbacks(batch_callbacks, epoch_callbacks, end_callbacks, others)
        self._set_loop(serialization_dir, placement, loggers=list(loggers or ()), plugins=list(plugins or ()), **parts)

    @classmethod
    def from_partial_objects(
        cls,
        model: nn.Module,
        serialization_dir: str | None,
        data_loader: Iterable[Any],
        *,
        num_epochs: int = 20,
        num_gradient_accumulation_steps: int = 1,
        world_size: int = 1,
        no_grad: list[str] | None = None,
        optimizer: Lazy[RegistrableOptimizer] | None = None,
        learning_rate_scheduler: Lazy[LearningRateScheduler] | None = None,
        momentum_scheduler: Lazy[MomentumScheduler] | None = None,
        tensorboard_writer: Lazy[TensorboardWriter] | None = None,
        moving_average: Lazy[MovingAverage] | None = None,
        checkpointer: Lazy[Checkpointer] | None = None,
        batch_callbacks: list[BatchCallback] | None = None,
        epoch_callbacks: list[EpochCallback] | None = None,
        end_callbacks: list[EndCallback] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build a trainer with parts that depend on each other; this is how configurations build it.

        A lazy part or a callback is a :class:`Lazy`, a partial, a dict with ``"type"``, or a registered name. The
        optimizer (by default Adam) gets the parameters, the schedulers get the optimizer. Arguments are documented on
        the class.

        Raises:
            ConfigurationError: If a part cannot be built.
        """
        counts = {
            "num_epochs": num_epochs,
            "num_gradient_accumulation_steps": num_gradient_accumulation_steps,
            "world_size": world_size,
        }
        parts = construct_callbacks(
            serialization_dir,
            batch_callbacks=batch_callbacks,
            epoch_callbacks=epoch_callbacks,
            end_callbacks=end_callbacks,
            callbacks=callbacks,
        )
        parts |= construct_parts(
            model,
            data_loader=data_loader,
            serialization_dir=serialization_dir,
            counts=counts,
            no_grad=no_grad,
            lazy_parts={
                "optimizer": optimizer,
                "learning_rate_scheduler": learning_rate_scheduler,
                "momentum_scheduler": momentum_scheduler,
                "tensorboard_writer": tensorboard_writer,
                "moving_average": moving_average,
                "checkpointer": checkpointer,
            },
        )
        make: Callable[..., Self] = cls
        return make(model, data_loader=data_loader, serialization_dir=serialization_dir, **counts, **parts, **kwargs)

    @property
    def is_primary(self) -> bool:
        return self.loop.is_world_process_zero()

    @property
    def lightning_trainer(self) -> pl.Trainer:
        """The ``lightning.Trainer`` of the current run, or of the last."""
        return self.loop.lightning_trainer

    @property
    def module(self) -> pl.LightningModule:
        """The ``LightningModule`` around the model."""
        return self.loop.module

    @property
    def datamodule(self) -> pl.LightningDataModule:
        """The ``LightningDataModule`` around the data."""
        return self.loop.datamodule

    def train(self) -> dict[str, Any]:
        """Train, or resume the training whose checkpoints are in ``serialization_dir``.

        Returns:
            Metrics: ``best_epoch``, ``epoch``, ``training_duration``, ``peak_*``, and the metrics of the last epoch
            (``training_*``, ``validation_*``) and of the best (``best_validation_*``). The model has the best weights.

        Raises:
            ConfigurationError: If the folder holds another run; nothing in it is changed.
            ValueError: If a loss is NaN.
        """
        checkpoint = self.checkpointer.load_checkpoint()
        # AllenNLP 2.0's checkpointers return two empty dicts if there is none.
        if checkpoint is not None and any(checkpoint):
            restore_training(self, checkpoint)
            logger.info("Recovered training after %d epochs.", self.progress.epochs_completed)
        else:
            if hasattr(self, "report"):
                # A second `train()` of the same trainer: the folder holds the files of the first.
                self.metric_tracker.clear()
            else:
                check_folder(self.serialization_dir)
            self.progress = Progress()
            self.restored = None
        if self.serialization_dir is not None and self.is_primary:
            remove_stale_staging(self.serialization_dir)
        earlier = None if self.restored is None else self.restored["metrics"]
        self.report = TrainingReport(self.metric_tracker, self.progress.epochs_completed, earlier)
        metrics: dict[str, Any] | None = None
        try:
            self.loop.train()
            if self.best_weights.exist:
                self.best_weights.load(self.model)
            if self.serialization_dir is not None and self.is_primary:
                file = self.serialization_dir / "metrics.json"
                known: dict[str, Any] = {}
                if self.report.is_earlier and file.is_file():
                    # A finished run that is started again: what was added to the file, such as test metrics, stays.
                    with suppress(ValueError):
                        known = json.loads(file.read_text(encoding="utf-8"))
                dump_metrics(file, {**known, **self.report.metrics})
            metrics = self.report.metrics
        finally:
            if self.tensorboard_writer is not None:
                self.tensorboard_writer.close()
            self.end_callbacks(metrics=metrics, epoch=None if metrics is None else metrics.get("epoch"))
        return metrics

    # ---- Called by the run, in the order described in `portico.gradient_descent.run` ----

    def begin(self) -> None:
        """Begin the run, once model and optimizer are on their device."""
        if self.moving_average is not None:
            self.moving_average.move_to_parameters()
        scaler = self.loop.accelerator.scaler
        if scaler is not None and self.restored is not None and self.restored["scaler"] is not None:
            scaler.load_state_dict(self.restored["scaler"])
        if self.restored is not None and self.progress.batches_in_epoch_completed > 0:
            self.model_metrics.load_state_dict(self.restored.get("model_metrics"), self.accelerator.device)
        self.start_callbacks(metrics={}, epoch=-1)
        if self.tensorboard_writer is not None:
            self.tensorboard_writer.begin(self.model)

    def batch_outputs(self, batch: object, for_training: bool) -> dict[str, Any]:
        """Run the model on a batch, a dict of its inputs.

        For training, the regularization penalty is added to the loss, and kept as ``"reg_loss"``.

        Raises:
            RuntimeError: If the model returns no loss to train on.
        """
        if not isinstance(batch, MutableMapping):
            raise ConfigurationError(
                f"The data loader yielded a {type(batch).__name__}; it must yield dicts of the model's inputs by name."
            )
        inputs = self.loop._prepare_inputs(cast(dict[str, Any], batch))
        outputs = self.loop.run_model(inputs, for_training=for_training)
        if not for_training:
            return outputs
        if not isinstance(outputs, Mapping) or "loss" not in outputs:
            # The wording is AllenNLP's.
            raise RuntimeError(
                "The model you are trying to optimize does not contain a 'loss' key in the output of "
                "model.forward(inputs). Return one, computed from the labels."
            )
        penalty = getattr(self.model, "get_regularization_penalty", lambda: None)()
        if penalty is not None:
            loss = outputs["loss"]
            outputs["reg_loss"] = penalty if torch.is_tensor(penalty) else loss.new_full((), penalty)
            outputs["loss"] = loss + outputs["reg_loss"]
        return outputs

    def backward_by_callbacks(self, batch_outputs: dict[str, Any]) -> bool:
        """Let the callbacks run the backward pass of a training batch; return whether one of them did."""
        backward_called = False
        for callback in self.backward_callbacks:
            backward_called |= callback.on_backward(self, batch_outputs, backward_called)
        return backward_called

    def rescale_gradients(self) -> float | None:
        """Clip the gradients to ``grad_norm``, if it is a number; return their norm before, if it is set."""
        if not self._grad_norm:
            return None
        if self._grad_norm is True:
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            return nn.utils.get_total_norm(gradients).item()
        return nn.utils.clip_grad_norm_(self.model.parameters(), self._grad_norm).item()

    def clip_gradient(self) -> None:
        """Clamp the gradients, which are already rescaled, to ``grad_clipping``."""
        if self._grad_clipping is not None:
            nn.utils.clip_grad_value_(self.model.parameters(), self._grad_clipping)

    def complete_epoch(self, epoch: int, memory: Mapping[str, float]) -> None:
        """End an epoch (from 0): validate, report, step the schedulers, call the callbacks, save.

        ``memory`` is the peak memory when the epoch began, in MiB.
        """
        train_metrics = {**epoch_metrics(self.model, self.progress.sums, self.accelerator), **memory}
        validation_metrics = self._validate()
        self.report.add_epoch(epoch, train_metrics, validation_metrics)
        # The evaluation has logged its own metrics.
        self.loop.log(self.report.progress_numbers())
        if self.is_primary and self.tensorboard_writer is not None:
            # AllenNLP counts from 1 here: TensorBoard does not like 0.
            self.tensorboard_writer.log_metrics(train_metrics, validation_metrics, epoch + 1)
        if self.is_primary and self.serialization_dir is not None:
            dump_metrics(self.serialization_dir / f"metrics_epoch_{epoch}.json", self.report.metrics)
        metric = self.metric_tracker.scheduler_metric(validation_metrics) if validation_metrics else None
        for scheduler in self.schedulers:
            self._check_metric(scheduler)
            scheduler.end_epoch(metric)
        self.epoch_callbacks(metrics=self.report.metrics, epoch=epoch)
        self.progress.complete_epoch()
        # Before the checkpoint: a run that was killed in between would resume after this epoch, without its weights.
        if self.metric_tracker.is_best_so_far():
            with self.averaged_weights():
                self.best_weights.save(self.model, is_primary=self.is_primary)
        self.maybe_save_checkpoint()
        self.accelerator.wait_for_everyone()

    def _validate(self) -> dict[str, Any]:
        if self.validation_data_loader is None:
            return {}
        if not self.should_validate_this_epoch:
            self.metric_tracker.skip_epoch()
            return {}
        self.loop.evaluate(metric_key_prefix="validation")
        assert self.loop.validation is not None
        metrics = self.loop.validation.metrics
        self.metric_tracker.add_metrics(metrics)
        return metrics

    # ---- Checkpoints ----

    def get_checkpoint_state(self) -> TrainerCheckpoint | None:
        """Return the states of model and training, ``None`` except in the first process; every process must call it.

        With a moving average the state of the model holds the averages.
        """
        with self.averaged_weights():
            model_state = self.model.state_dict()
            if self.moving_average is not None and self.is_primary:
                # The model gets its trained weights back when this context ends.
                for name, value in model_state.items():
                    model_state[name] = value.to("cpu", copy=True) if torch.is_tensor(value) else value
            state = capture_training(self)
        return TrainerCheckpoint(model_state, state) if self.is_primary else None

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model holds the moving averages, if there are any."""
        return nullcontext() if self.moving_average is None else self.moving_average.assigned()

    def save_checkpoint(self) -> None:
        self.checkpointer.save_checkpoint(self)

    def maybe_save_checkpoint(self) -> None:
        progress = self.progress
        self.checkpointer.maybe_save_checkpoint(self, progress.epochs_completed, progress.batches_in_epoch_completed)

    def get_best_weights_path(self) -> str | None:
        """Return the file of the best weights, or ``None``."""
        return str(self.best_weights.path) if self.best_weights.path and self.best_weights.exist else None

    def use_tensorboard(self, writer: TensorboardWriter) -> None:
        """Write to TensorBoard through ``writer`` from now on."""
        writer.get_batch_num_total = lambda: self.progress.total_batches
        self.tensorboard_writer = writer

    # ---- Construction ----

    def _check(self, patience: int | None) -> None:
        check_counts(
            num_epochs=self.num_epochs,
            num_gradient_accumulation_steps=self.num_gradient_accumulation_steps,
            world_size=self.world_size,
        )
        # Lightning takes no integers of numpy.
        self.num_epochs = int(self.num_epochs)
        self.num_gradient_accumulation_steps = int(self.num_gradient_accumulation_steps)
        check_trainer_parts(vars(self))
        for scheduler in (self.learning_rate_scheduler, self.momentum_scheduler):
            if scheduler is not None:
                self._check_metric(scheduler)
        if patience is None and self.validation_data_loader is not None:
            logger.warning(
                "You provided a validation dataset but patience was set to None, meaning that early stopping is "
                "disabled; set `patience` to enable it."
            )

    def _check_metric(self, scheduler: Scheduler) -> None:
        if self.validation_data_loader is None and scheduler.needs_metric:
            refuse_without_metric()

    def _set_callbacks(
        self,
        batch: Sequence[BatchCallback] | None,
        epoch: Sequence[EpochCallback] | None,
        end: Sequence[EndCallback] | None,
        others: Sequence[Any],
    ) -> dict[str, Any]:
        """Keep AllenNLP's callbacks; return Hugging Face's and Lightning's as arguments of the loop."""
        each, of_hugging_face, of_lightning = sort_callbacks(others)
        batch = batch or ()
        epoch = epoch or ()
        end = end or ()
        self.own_callbacks: list[Any] = [*batch, *epoch, *end, *each]
        of_batch = parameters_of(TrainerCallback.on_batch)
        of_epoch = parameters_of(TrainerCallback.on_epoch)
        self.start_callbacks = CallbackList(self, [*(callback.on_start for callback in each), *epoch], of_epoch)
        self.batch_callbacks = CallbackList(self, [*batch, *(callback.on_batch for callback in each)], of_batch)
        self.epoch_callbacks = CallbackList(self, [*epoch, *(callback.on_epoch for callback in each)], of_epoch)
        self.end_callbacks = CallbackList(self, [*end, *(callback.on_end for callback in each)], of_epoch)
        self.backward_callbacks = [
            callback for callback in each if type(callback).on_backward is not TrainerCallback.on_backward
        ]
        return {"callbacks": of_hugging_face, "lightning_callbacks": of_lightning}

    def _set_folder(self, serialization_dir: str | Path | None) -> str:
        """Return the folder of the run; without ``serialization_dir`` one that is removed with the trainer."""
        given = serialization_dir
        if given is not None and (not isinstance(given, str | Path) or Path(given).is_file()):
            raise ConfigurationError(
                f"`serialization_dir={given!r}` is not a folder; set it to one that is empty, does not exist yet, or "
                "holds the run to resume."
            )
        self.serialization_dir = None if given is None else Path(given)
        self.best_weights = BestWeights(self.serialization_dir)
        if given is not None:
            return str(given)
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _set_loop(self, serialization_dir: str | Path | None, placement: Mapping[str, Any], **parts: object) -> None:
        """Make the loop and the writers; see :meth:`_make_loop` for ``placement`` and ``parts``."""
        self.schedulers = [
            each for each in (self.learning_rate_scheduler, self.momentum_scheduler) if each is not None
        ]
        self.progress = Progress()
        self.model_metrics = ModelMetrics(self.model)
        self.loop = self._make_loop(self._set_folder(serialization_dir), placement, **parts)
        self.accelerator = self.loop.accelerator
        folder = self.serialization_dir
        writer = self.tensorboard_writer
        if self.checkpointer.serialization_dir is None:
            self.checkpointer.serialization_dir = folder
        self.checkpointer.check_processes(self.loop.args.world_size)
        if writer is None and folder is not None and tensorboard_is_installed():
            writer = TensorboardWriter(str(folder))
        if writer is not None:
            self.use_tensorboard(writer)

    def _make_loop(self, output_dir: str, placement: Mapping[str, Any], **parts: Any) -> LoopTrainer:
        """Return the trainer that runs the loops; backends override this.

        ``placement`` has Lightning's accelerator, strategy, devices, nodes and precision, as far as they are chosen;
        ``parts`` are callbacks, loggers and plugins.
        """
        args = TrainingArguments(
            output_dir=output_dir,
            num_train_epochs=self.num_epochs,
            gradient_accumulation_steps=self.num_gradient_accumulation_steps,
            use_cpu=placement.get("accelerator") == "cpu",
            **PARTS_TURNED_OFF,
            **placement,
        )
        return LoopTrainer(self, args, **parts)


@RegistrableTrainer.register("no_op")
class NoOpTrainer(RegistrableTrainer):
    """Saves a model without training it: a checkpoint, ``best.th``, and its vocabulary if it has one."""

    tensorboard_writer = None

    def __init__(self, serialization_dir: str | Path, model: nn.Module) -> None:
        self.progress = Progress()
        self.serialization_dir = Path(serialization_dir)
        self.model = model

    @property
    def is_primary(self) -> bool:
        return getattr(rank_zero_only, "rank", 0) == 0

    def train(self) -> dict[str, Any]:
        """Save the model, unless the folder holds a run, and return no metrics."""
        check_folder(self.serialization_dir)
        vocabulary: Any = getattr(self.model, "vocab", None)
        if self.is_primary and vocabulary is not None:
            vocabulary.save_to_files(str(self.serialization_dir / "vocabulary"))
        Checkpointer(str(self.serialization_dir)).save_checkpoint(self)
        BestWeights(self.serialization_dir).save(self.model, is_primary=self.is_primary)
        return {}

    def get_checkpoint_state(self) -> TrainerCheckpoint | None:
        state = {"epochs_completed": 0, "batches_in_epoch_completed": 0}
        return TrainerCheckpoint(self.model.state_dict(), state) if self.is_primary else None

    def batch_outputs(self, batch: Mapping[str, Any], for_training: bool) -> dict[str, Any]:
        with torch.set_grad_enabled(for_training):
            return cast(dict[str, Any], self.model(**batch))
