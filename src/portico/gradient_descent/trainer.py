"""AllenNLP's base of all trainers, and what callbacks, checkpointer and loop may ask of one."""

import logging
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from portico.checkpoint.writer import gradient_scaler
from portico.gradient_descent.arguments import (
    check_counts,
    check_limits,
    check_objects,
    construct_parts,
    lightning_options,
    sort_callbacks,
)
from portico.gradient_descent.callbacks import (
    BatchCallback,
    CallbackList,
    ConsoleLoggerCallback,
    EndCallback,
    EpochCallback,
    TrainerCallback,
    runs_backward,
)
from portico.gradient_descent.checkpointer import (
    BestWeights,
    Checkpointer,
    TrainerCheckpoint,
    as_folder,
    check_folder,
    restore_training,
    training_state,
)
from portico.gradient_descent.construction import Lazy, Registrable
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.metric_tracker import MetricTracker
from portico.gradient_descent.metrics import TrainingReport, epoch_metrics
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.optimizers import Optimizer
from portico.gradient_descent.run import LoopTrainer, Progress, clip_gradients, loop_arguments, rescale_gradients
from portico.gradient_descent.schedulers import LearningRateScheduler, MomentumScheduler, as_learning_rate_scheduler
from portico.gradient_descent.tensorboard import TensorboardWriter, tensorboard_is_installed


class Trainer(Registrable):
    """A trainer that a configuration names, ``"gradient_descent"`` by default.

    Attributes:
        model: The model.
        optimizer: The optimizer.
        data_loader: Training batches.
        accelerator: The processes and the device of the run.
        tensorboard_writer: Writer for TensorBoard, or ``None``.
        is_primary: Whether this is the first process.
    """

    default_implementation: ClassVar[str | None] = "gradient_descent"

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data_loader: Any
    accelerator: Any
    tensorboard_writer: Any

    @property
    @abstractmethod
    def is_primary(self) -> bool:
        """Whether this is the first process."""

    @abstractmethod
    def train(self) -> dict[str, Any]:
        """Train, and return the metrics."""

    @abstractmethod
    def get_checkpoint_state(self) -> AbstractContextManager[TrainerCheckpoint]:
        """Return a context in which the states of model and training can be saved."""

    @abstractmethod
    def batch_outputs(self, batch: Any, for_training: bool) -> dict[str, Any]:
        """Run the model on a batch."""


class StepMethods(Trainer):
    """The steps of :class:`~portico.gradient_descent.trainer.GradientDescentTrainer`."""

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


logger = logging.getLogger(__name__)


class DescentMethods(StepMethods):
    """The training of :class:`~portico.gradient_descent.trainer.GradientDescentTrainer`.

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


class PartialConstruction(DescentMethods):
    """How a configuration file builds a trainer."""

    @classmethod
    def from_partial_objects(
        cls,
        model: nn.Module,
        serialization_dir: str | None,
        data_loader: Any,
        *,
        num_epochs: int = 20,
        num_gradient_accumulation_steps: int = 1,
        world_size: int = 1,
        no_grad: list[str] | None = None,
        optimizer: Lazy[Optimizer] | None = None,
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
        """Build a trainer from parts that depend on each other, in the order in which they do.

        This is what a configuration file builds with. Each lazy part can be a
        :class:`~portico.gradient_descent.construction.Lazy`, a partial, a dict with ``"type"``, or a registered name;
        the optimizer gets the parameters, the schedulers get the optimizer, the averages the trainable parameters.

        Args:
            model: The model.
            serialization_dir: Folder of the run, or ``None``.
            data_loader: Training batches; their number tells the schedulers the steps of an epoch.
            num_epochs: Passes over the data.
            num_gradient_accumulation_steps: Batches of an optimizer step.
            world_size: Processes.
            no_grad: Regular expressions; parameters in whose names one is found are frozen.
            optimizer: Lazy optimizer; by default AllenNLP's, Adam.
            learning_rate_scheduler: Lazy schedule.
            momentum_scheduler: Lazy schedule of the momentum.
            tensorboard_writer: Lazy writer.
            moving_average: Lazy averages.
            checkpointer: Lazy checkpointer.
            batch_callbacks: Callbacks, or their configurations.
            epoch_callbacks: Callbacks, or their configurations.
            end_callbacks: Callbacks, or their configurations.
            callbacks: Callbacks of AllenNLP 2, or their configurations; callbacks of Hugging Face and of Lightning.
            **kwargs: Further arguments of the class.

        Raises:
            ConfigurationError: If a part cannot be built.
        """
        counts = {
            "num_epochs": num_epochs,
            "num_gradient_accumulation_steps": num_gradient_accumulation_steps,
            "world_size": world_size,
        }
        check_counts(**counts)
        parts = construct_parts(
            model,
            data_loader=data_loader,
            serialization_dir=serialization_dir,
            **counts,
            no_grad=no_grad,
            lazy_parts={
                "optimizer": optimizer,
                "learning_rate_scheduler": learning_rate_scheduler,
                "momentum_scheduler": momentum_scheduler,
                "moving_average": moving_average,
                "checkpointer": checkpointer,
                "tensorboard_writer": tensorboard_writer,
            },
            callbacks={
                "batch_callbacks": batch_callbacks,
                "epoch_callbacks": epoch_callbacks,
                "end_callbacks": end_callbacks,
                "callbacks": callbacks,
            },
        )
        given = {"data_loader": data_loader, "serialization_dir": serialization_dir, **counts, **kwargs}
        make: Callable[..., Self] = cls
        return make(model, **parts, **given)


_EPOCH_ARGUMENTS = ("trainer", "metrics", "epoch", "is_primary")
_BATCH_ARGUMENTS = (
    "trainer",
    "batch_inputs",
    "batch_outputs",
    "batch_metrics",
    "epoch",
    "batch_number",
    "is_training",
    "is_primary",
    "batch_grad_norm",
)


@Trainer.register("gradient_descent", constructor="from_partial_objects")
class GradientDescentTrainer(PartialConstruction):
    """Trains a model by gradient descent, as AllenNLP's trainer of this name does, in Lightning's loops.

    A model is any module whose ``forward`` returns a dict with ``"loss"``, those of transformers included. It may have
    ``get_metrics(reset)``, which returns numbers by name, and ``get_regularization_penalty()``.

    Names are those of AllenNLP 1; the semantics are those of AllenNLP 2 where the two differ: gradients are clipped
    once per step and after they are rescaled, a run that stops early records its last epoch, and recovery is exact.

    Args:
        model: The model.
        optimizer: Optimizer of its parameters.
        data_loader: Training batches, dicts of the model's inputs.
        patience: Epochs without improvement after which training stops; ``None`` never stops it.
        validation_metric: Metric to improve: ``+`` or ``-`` and its name; of a list the signed sum counts.
        validation_data_loader: Validation batches.
        num_epochs: Passes over the data.
        serialization_dir: Folder for checkpoints, metrics and TensorBoard. A training whose checkpoints it holds
            goes on; without a folder nothing is kept.
        checkpointer: Writes checkpoints; by default at the end of each epoch, two of them kept.
        cuda_device: Index of a GPU, -1 for the CPU; by default what Lightning finds.
        grad_norm: Largest norm of all gradients; ``True`` measures the norm only.
        grad_clipping: Largest absolute value in a gradient.
        learning_rate_scheduler: Schedule, of AllenNLP's kind or of torch's.
        momentum_scheduler: Schedule of the momentum.
        tensorboard_writer: Writer for TensorBoard; by default one with AllenNLP's intervals, where there is a folder
            and TensorBoard is installed.
        moving_average: Averages that are validated and saved in the place of the weights.
        batch_callbacks: Called after each step and each validation batch.
        epoch_callbacks: Called before training (epoch -1) and after each epoch.
        distributed: Train on ``world_size`` processes, which Lightning starts.
        local_rank: Accepted for AllenNLP's sake; Lightning counts the processes.
        world_size: Processes.
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
        num_nodes: Machines.
        precision: Lightning precision.
        grad_scaling: Must be true with ``use_amp``; Lightning's mixed precision always scales the loss.
        enable_default_callbacks: Log a table of metrics after each epoch, as ``"console_logger"`` does. Off unless
            asked for; AllenNLP's other default, the confidence checks, is not here.

    Attributes:
        loop: The Hugging Face facade underneath.
        report: Metrics of the present training, or of the last.

    Raises:
        ConfigurationError: If the arguments cannot be used, before anything is written.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Any,
        patience: int | None = None,
        validation_metric: str | list[str] = "-loss",
        validation_data_loader: Any = None,
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
    ) -> None:
        check_counts(
            num_epochs=num_epochs,
            num_gradient_accumulation_steps=num_gradient_accumulation_steps,
            world_size=world_size,
        )
        check_limits(grad_norm=grad_norm, grad_clipping=grad_clipping)
        learning_rate_scheduler = as_learning_rate_scheduler(learning_rate_scheduler)
        check_objects(
            model=model,
            optimizer=optimizer,
            learning_rate_scheduler=learning_rate_scheduler,
            momentum_scheduler=momentum_scheduler,
            moving_average=moving_average,
            checkpointer=checkpointer,
            tensorboard_writer=tensorboard_writer,
            data_loader=data_loader,
            validation_data_loader=validation_data_loader,
        )
        self.model = model
        self.optimizer = optimizer
        self.data_loader = data_loader
        self.validation_data_loader = validation_data_loader
        self.metric_tracker = MetricTracker(validation_metric, patience)
        if patience is None and validation_data_loader is not None:
            logger.warning(
                "You provided a validation dataset but patience was set to None, meaning that early stopping is "
                "disabled"
            )
        self.num_epochs = num_epochs
        self.num_gradient_accumulation_steps = num_gradient_accumulation_steps
        self._grad_norm = grad_norm
        self._grad_clipping = grad_clipping
        self.learning_rate_scheduler = learning_rate_scheduler
        self.momentum_scheduler = momentum_scheduler
        self.schedulers = [part for part in (self.learning_rate_scheduler, momentum_scheduler) if part is not None]
        self.moving_average = moving_average
        defaults = [ConsoleLoggerCallback()] if enable_default_callbacks else []
        kinds = sort_callbacks([*(callbacks or ()), *defaults])
        self._take_callbacks(batch_callbacks or (), epoch_callbacks or (), end_callbacks or (), kinds.allennlp)
        self.progress = Progress()
        self.restored_states = {}
        placement = lightning_options(
            cuda_device=cuda_device,
            distributed=distributed,
            world_size=world_size,
            opt_level=opt_level,
            use_amp=use_amp,
            grad_scaling=grad_scaling,
            chosen={
                "accelerator": accelerator,
                "strategy": strategy,
                "devices": devices,
                "num_nodes": num_nodes,
                "precision": precision,
            },
        )
        self.loop = self._make_loop(
            self._take_folder(serialization_dir),
            placement,
            loggers=list(loggers or ()),
            plugins=list(plugins or ()),
            callbacks=kinds.hugging_face,
            lightning_callbacks=kinds.lightning,
        )
        self.accelerator = self.loop.accelerator
        self._take_writers(checkpointer, tensorboard_writer)

    def _make_loop(self, output_dir: str, placement: Mapping[str, Any], **parts: Any) -> LoopTrainer:
        """Return the facade that runs the loops; a backend with a facade of its own overrides this.

        Args:
            output_dir: Folder of the run.
            placement: Lightning's accelerator, strategy, devices, nodes and precision, as far as they are chosen.
            **parts: Callbacks, loggers and plugins.
        """
        args = loop_arguments(
            output_dir=output_dir,
            num_epochs=self.num_epochs,
            num_gradient_accumulation_steps=self.num_gradient_accumulation_steps,
            placement=placement,
        )
        return LoopTrainer(self, args, **parts)

    def _take_folder(self, serialization_dir: str | Path | None) -> str:
        """Return the folder of the run; one that goes with the trainer where nothing is to be kept."""
        self.serialization_dir = as_folder(serialization_dir)
        self.best_weights = BestWeights(self.serialization_dir)
        if self.serialization_dir is not None:
            return str(self.serialization_dir)
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _take_callbacks(
        self, batch: Sequence[Any], epoch: Sequence[Any], end: Sequence[Any], trainer_callbacks: list[TrainerCallback]
    ) -> None:
        self.own_callbacks = [*batch, *epoch, *end, *trainer_callbacks]
        self.start_callbacks = CallbackList([each.on_start for each in trainer_callbacks] + [*epoch], _EPOCH_ARGUMENTS)
        self.batch_callbacks = CallbackList([*batch, *(each.on_batch for each in trainer_callbacks)], _BATCH_ARGUMENTS)
        self.epoch_callbacks = CallbackList([*epoch, *(each.on_epoch for each in trainer_callbacks)], _EPOCH_ARGUMENTS)
        self.end_callbacks = CallbackList([*end, *(each.on_end for each in trainer_callbacks)], _EPOCH_ARGUMENTS)
        self.backward_callbacks = [each for each in trainer_callbacks if runs_backward(each)]

    def _take_writers(self, checkpointer: Checkpointer | None, writer: TensorboardWriter | None) -> None:
        folder = None if self.serialization_dir is None else str(self.serialization_dir)
        self.checkpointer = Checkpointer(folder) if checkpointer is None else checkpointer
        if self.checkpointer.serialization_dir is None:
            self.checkpointer.serialization_dir = self.serialization_dir
        self.checkpointer.check_processes(self.loop.args.world_size)
        if writer is None and folder is not None and tensorboard_is_installed():
            writer = TensorboardWriter(folder)
        self.tensorboard_writer = None
        if writer is not None:
            self.use_tensorboard(writer)


@Trainer.register("no_op")
class NoOpTrainer(Trainer):
    """Writes a model down without training it: a checkpoint, ``best.th``, and its vocabulary if it has one.

    Args:
        serialization_dir: Folder to write to.
        model: The model.
    """

    tensorboard_writer = None

    def __init__(self, serialization_dir: str | Path, model: nn.Module) -> None:
        self.serialization_dir = Path(serialization_dir)
        self.model = model

    @property
    def is_primary(self) -> bool:
        """Whether this is the first process."""
        return getattr(rank_zero_only, "rank", 0) == 0

    def train(self) -> dict[str, Any]:
        """Write the model, and return no metrics.

        Raises:
            ConfigurationError: If the folder holds a run; nothing in it is changed.
        """
        check_folder(self.serialization_dir)
        vocabulary: Any = getattr(self.model, "vocab", None)
        if self.is_primary and vocabulary is not None:
            vocabulary.save_to_files(str(self.serialization_dir / "vocabulary"))
        Checkpointer(str(self.serialization_dir)).save_checkpoint(self)
        BestWeights(self.serialization_dir).save(self.model, is_primary=self.is_primary)
        return {}

    @contextmanager
    def get_checkpoint_state(self) -> Iterator[TrainerCheckpoint]:
        """Give the weights, and that nothing has been trained."""
        yield TrainerCheckpoint(self.model.state_dict(), {"epochs_completed": 0, "batches_in_epoch_completed": 0})

    def batch_outputs(self, batch: Any, for_training: bool) -> dict[str, Any]:
        """Run the model on a batch."""
        with torch.set_grad_enabled(for_training):
            outputs: dict[str, Any] = self.model(**batch)
        return outputs
