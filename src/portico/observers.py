"""Watch training from outside: what ``portico run``, ``verify`` and ``replay`` are built on.

An :class:`Observer` is notified of what every trainer in this process does, including trainers that a script creates::

    class Batches(Observer):
        def on_training_step_begin(self, trainer, model, inputs):
            print(trainer.state.global_step, inputs["input_ids"].shape)

    with observe(Batches()):
        runpy.run_path("train.py")

For the events of ``transformers.TrainerCallback``, such as ``on_step_end`` or ``on_log``, an observer adds a callback
to ``trainer.callback_handler`` in :meth:`Observer.on_train`. Importing this module imports neither torch nor
transformers.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from transformers import TrainerControl, TrainerState, TrainingArguments


class ObservedTrainer(Protocol):
    """The attributes of a trainer that observers use; ``transformers.Trainer`` has them too."""

    @property
    def args(self) -> "TrainingArguments": ...
    @property
    def state(self) -> "TrainerState": ...
    @property
    def control(self) -> "TrainerControl": ...
    @property
    def callback_handler(self) -> Any: ...
    @property
    def compute_loss(self) -> "Callable[..., Any]": ...


class ObservedEvaluation(Protocol):
    """The attributes of an evaluation that observers use, and may replace."""

    trainer: Any
    loader: Any
    """Its batches."""
    losses: Any
    """Collects the loss of each example; ``logits``, ``labels`` and ``inputs`` do so for what they are named after."""
    logits: Any
    labels: Any
    inputs: Any


class Observer:
    """Base class for observers of portico's trainers: override the methods you need; the others do nothing."""

    def on_arguments_init(self, args: object) -> None:
        """Training arguments are being created, or adopted from transformers; their fields may still be changed."""

    def on_trainer_init(self, trainer: ObservedTrainer) -> None:
        """A trainer is being created; it has its ``args``, and no other attributes yet."""

    def on_search(self, trainer: ObservedTrainer, num_trials: "int | None") -> "int | None":
        """A hyperparameter search starts; return the number of its trials, by default the given ``num_trials``."""
        return num_trials

    def on_train(self, trainer: ObservedTrainer, checkpoint: "str | bool | None") -> "str | bool | None":
        """Training starts; return the checkpoint to resume from, by default the given ``checkpoint``."""
        return checkpoint

    def on_train_dataloader(self, trainer: ObservedTrainer, loader: "DataLoader[Any]") -> None:
        """A run trains on this loader, or on copies of it that skip batches."""

    def on_indices_drawn(self, loader: "DataLoader[Any]", indices: object) -> None:
        """A loader of portico has drawn the indices of its next batch, in the order of the batches.

        ``indices`` is what the batch sampler yields, usually a list of integers. Indices are drawn ahead of training,
        even if worker processes load the batches. The method is not called for streams, which have no indices.
        """

    def on_evaluation(self, session: "ObservedEvaluation") -> None:
        """An evaluation or a prediction starts; ``session.loader`` and what collects its outputs may be replaced."""

    def on_training_step_begin(self, trainer: ObservedTrainer, model: "nn.Module", inputs: "dict[str, Any]") -> None:
        """``trainer.training_step(model, inputs)``, or an override of it, is called next."""

    def on_compute_loss(self, trainer: ObservedTrainer, model: "nn.Module", inputs: "dict[str, Any]") -> None:
        """``trainer.compute_loss(model, inputs)`` is called next for training, with inputs on the model's device."""

    def on_training_step_end(self, trainer: ObservedTrainer, model: "nn.Module", loss: "torch.Tensor") -> None:
        """``trainer.training_step`` has returned this loss, a scalar divided for accumulation."""


active: tuple[Observer, ...] = ()
"""The observers of this process; notify them with ``for observer in observers.active: observer.on_...``."""


def observe(observer: Observer) -> ExitStack:
    """Notify ``observer`` of what happens from now on; in a ``with`` statement, until the end of the block."""
    global active
    active = (*active, observer)
    registration = ExitStack()
    registration.callback(_forget, observer)
    return registration


def _forget(observer: Observer) -> None:
    global active
    active = tuple(other for other in active if other is not observer)


# ---- Options of every trainer ----

RUN_VARIABLE = "PORTICO_RUN"
"""Processes that ``portico run`` starts find their options in this environment variable."""


@dataclass(frozen=True)
class RunOptions:
    """What ``portico.install`` adds to each trainer; the first six are fields of ``TrainingArguments``."""

    accelerator: str | None = None
    strategy: str | None = None
    devices: int | str | None = None
    num_nodes: int | None = None
    precision: str | None = None
    corrections: str | None = None
    callbacks: Sequence[object] = ()
    """Callbacks of transformers or Lightning: objects, or ``package.Class``, which is called without arguments."""
    loggers: Sequence[object] = ()
    """Lightning loggers: objects, ``package.Class``, or ``csv`` or ``tensorboard`` for one in ``output_dir``."""

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, (), [])}

    def fill(self, args: object) -> None:
        """Set the fields of training arguments that the script leaves unset."""
        for field in fields(self)[:6]:
            if getattr(self, field.name) is not None and getattr(args, field.name) is None:
                setattr(args, field.name, getattr(self, field.name))


_options = RunOptions()


def options() -> RunOptions:
    """Return the options added to each trainer; empty unless ``portico.install`` was called with options."""
    return _options


def set_options(changed: RunOptions) -> None:
    """Replace the options that are added to each trainer created from now on."""
    global _options
    _options = changed


def tell_of_arguments(args: object) -> None:
    """Set the options in training arguments that are being created, and notify the observers."""
    _options.fill(args)
    for observer in active:
        observer.on_arguments_init(args)
