"""Arguments of the trainer that are checked or sorted before anything is built."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import transformers
from torch import nn

from portico.gradient_descent.callbacks import TrainerCallback
from portico.gradient_descent.checkpointer import Checkpointer
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.learning_rate_schedulers import LearningRateScheduler
from portico.gradient_descent.momentum_schedulers import MomentumScheduler
from portico.gradient_descent.moving_average import MovingAverage
from portico.gradient_descent.tensorboard import TensorboardWriter
from portico.hf_compat import has_length

_KINDS: Mapping[str, type] = {
    "model": nn.Module,
    "optimizer": torch.optim.Optimizer,
    "learning_rate_scheduler": LearningRateScheduler,
    "momentum_scheduler": MomentumScheduler,
    "moving_average": MovingAverage,
    "checkpointer": Checkpointer,
    "tensorboard_writer": TensorboardWriter,
}
_SCHEDULERS = ("learning_rate_scheduler", "momentum_scheduler")
_NEEDED = ("model", "optimizer", "data_loader")


def check_counts(**counts: Any) -> None:
    """Refuse counts that are no int of 1 or more, by the names of their arguments.

    Raises:
        ConfigurationError: Names the argument, its value and what is allowed.
    """
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise ConfigurationError(f"`{name}={count!r}` cannot be used; set it to an int >= 1.")


def check_limits(*, grad_norm: Any, grad_clipping: Any) -> None:
    """Refuse limits of gradients that are no numbers above 0.

    Raises:
        ConfigurationError: Names the argument, its value and what is allowed.
    """
    only_measured = isinstance(grad_norm, bool)
    for name, limit in {"grad_norm": None if only_measured else grad_norm, "grad_clipping": grad_clipping}.items():
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
            raise ConfigurationError(f"`{name}={limit!r}` is no limit; set it to a number above 0, or to None.")


def check_objects(**parts: Any) -> None:
    """Refuse arguments of the constructor that are not yet, or not at all, what they should be.

    Args:
        **parts: Model, optimizer, loaders and the other parts by argument name, ``None`` where there is none.

    Raises:
        ConfigurationError: Names the argument, what it is and what it should be.
    """
    given = {name: part for name, part in parts.items() if part is not None or name in _NEEDED}
    for name, part in given.items():
        if name in _KINDS:
            _check_kind(name, part, _KINDS[name])
        else:
            _check_loader(name, part)
    for name in _SCHEDULERS:
        if name in given:
            _check_scheduler(name, given[name], parts["optimizer"])
    _check_parameters(parts["model"], parts["optimizer"])


def _check_kind(name: str, part: Any, kind: type) -> None:
    if not isinstance(part, kind):
        raise ConfigurationError(
            f"`{name}={part!r}` is a {type(part).__name__}; give a {kind.__name__}, or build the trainer with "
            "`GradientDescentTrainer.from_partial_objects`, which takes names and dicts for its parts."
        )


def _check_loader(name: str, loader: Any) -> None:
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise ConfigurationError(
            f"`{name}={loader!r}` is a {type(loader).__name__}; give an iterable of batches, such as a DataLoader."
        )
    if has_length(loader) and len(loader) == 0:
        raise ConfigurationError(
            f"`{name}` is empty, so there is nothing to train on or to validate; give one with at least one batch "
            "(a loader with `drop_last=True` drops all of a data set that is smaller than a batch)."
        )


def _check_scheduler(name: str, scheduler: Any, optimizer: Any) -> None:
    if scheduler.optimizer is not optimizer:
        raise ConfigurationError(
            f"`{name}` ({type(scheduler).__name__}) was made for another optimizer than `optimizer`, whose values "
            "it would not change; make it of the same object."
        )


def _check_parameters(model: Any, optimizer: Any) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ConfigurationError(
            f"`optimizer` ({type(optimizer).__name__}) holds no parameter of `model`, so nothing would be learned; "
            "make it of `model.parameters()`."
        )


class SortedCallbacks(NamedTuple):
    """Callbacks by the library whose kind they are, each in the order given."""

    hugging_face: list[Any]
    lightning: list[Any]
    allennlp: list[TrainerCallback]


def sort_callbacks(callbacks: Sequence[Any]) -> SortedCallbacks:
    """Sort ``callbacks`` by the library whose kind they are.

    Raises:
        ConfigurationError: If one is of none.
    """
    kinds = SortedCallbacks([], [], [])
    for callback in callbacks:
        is_class = isinstance(callback, type) and issubclass(callback, transformers.TrainerCallback)
        if is_class or isinstance(callback, transformers.TrainerCallback):
            kinds.hugging_face.append(callback)
        elif isinstance(callback, pl.Callback):
            kinds.lightning.append(callback)
        elif isinstance(callback, TrainerCallback):
            kinds.allennlp.append(callback)
        else:
            raise ConfigurationError(
                f"`callbacks` holds {callback!r}, which is a callback neither of Hugging Face nor of Lightning, nor a "
                "`TrainerCallback` of AllenNLP 2; those of AllenNLP 1 go to `batch_callbacks`, `epoch_callbacks` and "
                "`end_callbacks`, and names and dicts to `from_partial_objects`."
            )
    return kinds
