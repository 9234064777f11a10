"""What an AllenNLP trainer does in the course of a training."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from portico.checkpoint.writer import gradient_scaler
from portico.gradient_descent.best_weights import BestWeights
from portico.gradient_descent.callbacks import CallbackList
from portico.gradient_descent.checkpointer import Checkpointer
from portico.gradient_descent.losses import epoch_metrics
from portico.gradient_descent.metric_tracker import MetricTracker
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.progress import Progress
from portico.gradient_descent.recovery import check_folder, restore_training, training_state
from portico.gradient_descent.report import TrainingReport
from portico.gradient_descent.steps import StepMethods
from portico.gradient_descent.tensorboard import TensorboardWriter
from portico.gradient_descent.trainer import TrainerCheckpoint

logger = logging.getLogger(__name__)


class DescentMethods(StepMethods):
    """The training of :class:`~portico.gradient_descent.gradient_descent_trainer.GradientDescentTrainer`.

    The loop calls these methods in AllenNLP's order; users may override or call them as in AllenNLP.
    """

    validation_data_loader: Any
    num_epochs: int
    num_gradient_accumulation_steps: int
    serialization_dir: Path | None
    checkpointer: Checkpointer
    metric_tracker: MetricTracker
    moving_average: MovingAverage | None
    schedulers: list[Any]
    own_callbacks: list[Any]
    start_callbacks: CallbackList
    batch_callbacks: CallbackList
    epoch_callbacks: CallbackList
    end_callbacks: CallbackList
    should_validate_this_epoch: bool = True
    progress: Progress
    report: TrainingReport
    best_weights: BestWeights
    restored_states: dict[str, Any]
    restored_callbacks: dict[str, Any] | None = None
    restored_scaler: dict[str, Any] | None = None

    @property
    def is_primary(self) -> bool:
        """Whether this is the first process."""
        return self.loop.is_world_process_zero()

    @property
    def lightning_trainer(self) -> pl.Trainer:
        """The ``lightning.Trainer`` of the present run, or of the last."""
        return self.loop.lightning_trainer

    @property
    def module(self) -> pl.LightningModule:
        """The ``LightningModule`` around the model."""
        module: pl.LightningModule = self.loop.module
        return module

    @property
    def datamodule(self) -> pl.LightningDataModule:
        """The ``LightningDataModule`` around the data."""
        datamodule: pl.LightningDataModule = self.loop.datamodule
        return datamodule

    def train(self) -> dict[str, Any]:
        """Train, or go on with the training whose checkpoints are in ``serialization_dir``.

        Returns:
            Metrics: ``best_epoch``, ``epoch``, ``training_duration``, ``peak_*``, and the metrics of the last epoch
            (``training_*``, ``validation_*``) and of the best (``best_validation_*``). The model has the best weights.

        Raises:
            ConfigurationError: If the folder holds another run; nothing in it is changed.
            ValueError: If a loss is not a number.
        """
        self._recover()
        self.report = TrainingReport(self.metric_tracker, self.progress.epochs_completed)
        outcome: dict[str, Any] = {"metrics": None, "epoch": None}
        try:
            self.loop.train()
            self._finish()
            outcome = {"metrics": self.report.metrics, "epoch": self.report.metrics.get("epoch")}
        finally:
            if self.tensorboard_writer is not None:
                self.tensorboard_writer.close()
            self.end_callbacks(trainer=self, is_primary=self.is_primary, **outcome)
        return self.report.metrics

    # Checkpoints

    @contextmanager
    def get_checkpoint_state(self) -> Iterator[TrainerCheckpoint]:
        """Give the states of model and training; within, the moving averages are in the model.

        Every process must take part.
        """
        with self.averaged_weights():
            yield TrainerCheckpoint(self.model.state_dict(), training_state(self))

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the moving averages, where there are any."""
        return nullcontext() if self.moving_average is None else self.moving_average.assigned()

    def use_tensorboard(self, writer: TensorboardWriter) -> None:
        """Write to TensorBoard through ``writer`` from now on."""
        writer.get_batch_num_total = lambda: self.progress.total_batches
        self.tensorboard_writer = writer

    def save_checkpoint(self) -> None:
        """Write a checkpoint now."""
        self.checkpointer.save_checkpoint(self)

    def maybe_save_checkpoint(self) -> None:
        """Write a checkpoint if the checkpointer finds that it is time."""
        progress = self.progress
        self.checkpointer.maybe_save_checkpoint(self, progress.epochs_completed, progress.batches_in_epoch_completed)

    def get_best_weights_path(self) -> str | None:
        """Return the file of the best weights; ``None`` where there is none."""
        return str(self.best_weights.path) if self.best_weights.path and self.best_weights.exist else None

    # What the loop calls

    def begin(self) -> None:
        """Begin the run: model and optimizer are where they will be trained."""
        if self.moving_average is not None:
            self.moving_average.move_to_parameters()
        scaler = gradient_scaler(self.loop)
        if scaler is not None and self.restored_scaler is not None:
            scaler.load_state_dict(self.restored_scaler)
        self.start_callbacks(trainer=self, metrics={}, epoch=-1, is_primary=self.is_primary)
        if self.tensorboard_writer is not None:
            self.tensorboard_writer.begin(self.model)

    def complete_epoch(self, epoch: int, memory: Mapping[str, float]) -> None:
        """Close an epoch: validate, report, step the schedulers, call the callbacks, save.

        Args:
            epoch: Epoch, from 0.
            memory: Peaks of memory when the epoch began, in MB.
        """
        train_metrics = {**epoch_metrics(self.model, self.progress.sums, self.accelerator), **memory}
        validation_metrics = self._validate()
        self.report.add_epoch(epoch, train_metrics, validation_metrics)
        self._publish(epoch, train_metrics, validation_metrics)
        for scheduler in self.schedulers:
            scheduler.step(self.metric_tracker.scheduler_metric(validation_metrics) if validation_metrics else None)
        self.epoch_callbacks(trainer=self, metrics=self.report.metrics, epoch=epoch, is_primary=self.is_primary)
        self.progress.complete_epoch()
        self.maybe_save_checkpoint()
        if self.metric_tracker.is_best_so_far():
            with self.averaged_weights():
                self.best_weights.save(self.model, is_primary=self.is_primary)
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

    def _publish(self, epoch: int, train_metrics: Mapping[str, Any], validation_metrics: Mapping[str, Any]) -> None:
        """Hand the metrics to files, TensorBoard, Hugging Face's callbacks and Lightning's loggers."""
        # The evaluation has logged its own.
        self.loop.log(self.report.progress_numbers())
        if not self.is_primary:
            return
        if self.tensorboard_writer is not None:
            # From 1: TensorBoard does not like 0.
            self.tensorboard_writer.log_metrics(train_metrics, validation_metrics, epoch + 1)
        if self.serialization_dir is not None:
            self.report.write_epoch(self.serialization_dir)

    def _recover(self) -> None:
        checkpoint = self.checkpointer.load_checkpoint()
        if checkpoint is not None:
            restore_training(self, checkpoint)
            logger.info("Recovered training after %d epochs.", self.progress.epochs_completed)
            return
        if not hasattr(self, "report"):
            check_folder(self.serialization_dir)
        self.progress = Progress()

    def _finish(self) -> None:
        if self.best_weights.exist:
            self.best_weights.load(self.model)
        if self.serialization_dir is not None and self.is_primary:
            self.report.write(self.serialization_dir)
