"""A trainer out of parts that need each other."""

from collections.abc import Callable
from typing import Any, Self

from torch import nn

from portico.gradient_descent.arguments import check_counts
from portico.gradient_descent.callbacks import BatchCallback, EndCallback, EpochCallback, TrainerCallback
from portico.gradient_descent.checkpointer import Checkpointer
from portico.gradient_descent.descent import DescentMethods
from portico.gradient_descent.lazy import Lazy
from portico.gradient_descent.learning_rate_schedulers import LearningRateScheduler
from portico.gradient_descent.momentum_schedulers import MomentumScheduler
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.optimizers import Optimizer
from portico.gradient_descent.partial_objects import construct_parts
from portico.gradient_descent.tensorboard import TensorboardWriter


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
        :class:`~portico.gradient_descent.lazy.Lazy`, a partial, a dict with ``"type"``, or a registered name; the
        optimizer gets the parameters, the schedulers get the optimizer, the averages the trainable parameters.

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
