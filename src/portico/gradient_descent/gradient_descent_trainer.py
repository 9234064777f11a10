"""AllenNLP's ``GradientDescentTrainer`` over Lightning."""

import logging
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from portico.gradient_descent.arguments import check_counts, check_limits, check_objects, sort_callbacks
from portico.gradient_descent.best_weights import BestWeights
from portico.gradient_descent.callbacks import (
    BatchCallback,
    CallbackList,
    ConsoleLoggerCallback,
    EndCallback,
    EpochCallback,
    TrainerCallback,
    runs_backward,
)
from portico.gradient_descent.checkpointer import Checkpointer
from portico.gradient_descent.files import as_folder
from portico.gradient_descent.learning_rate_schedulers import LearningRateScheduler, as_learning_rate_scheduler
from portico.gradient_descent.loop import LoopTrainer, loop_arguments
from portico.gradient_descent.metric_tracker import MetricTracker
from portico.gradient_descent.momentum_schedulers import MomentumScheduler
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.partial_construction import PartialConstruction
from portico.gradient_descent.placement import lightning_options
from portico.gradient_descent.progress import Progress
from portico.gradient_descent.summary_files import tensorboard_is_installed
from portico.gradient_descent.tensorboard import TensorboardWriter
from portico.gradient_descent.trainer import Trainer

logger = logging.getLogger(__name__)

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
        loop: The Hugging Face trainer underneath.
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
        """Return the trainer that runs the loops; a backend with a trainer of its own overrides this.

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
