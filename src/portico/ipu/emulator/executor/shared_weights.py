"""Which programs train which weights, so that others read them anew."""

import weakref
from typing import Any, Protocol

from torch import nn

from portico.ipu.emulator.device.memory import DeviceMemory


class Trains(Protocol):
    """A program that trains.

    Attributes:
        num_writes: How often it has written weights.
    """

    num_writes: int

    def destroy(self) -> None:
        """Give the model up."""

    @property
    def memory(self) -> DeviceMemory | None:
        """What it has on the device, once it is compiled."""


_trainers: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Trains]]" = weakref.WeakKeyDictionary()


def claim(model: nn.Module, trainer: Trains) -> None:
    """Make ``trainer`` the program that trains ``model``.

    Raises:
        RuntimeError: If another does, and was not destroyed.
    """
    holder = _trainers.get(model)
    if holder is not None and holder() is not None:
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to unwrap "
            "before wrapping again."
        )
    _trainers[model] = weakref.ref(trainer)
    model.__dict__["destroy"] = _Destroy(weakref.ref(trainer))


def give_up(model: nn.Module, trainer: Trains) -> None:
    """Let another program train ``model``, if ``trainer`` did."""
    holder = _trainers.get(model)
    if holder is not None and holder() is trainer:
        del _trainers[model]
        del model.__dict__["destroy"]


class _Destroy:
    """``model.destroy()``; it stays behind where the model is copied or pickled.

    Args:
        trainer: The program that is destroyed.
    """

    def __init__(self, trainer: "weakref.ref[Trains] | None" = None) -> None:
        self._trainer = trainer

    def __call__(self) -> None:
        trainer = None if self._trainer is None else self._trainer()
        if trainer is not None:
            trainer.destroy()

    def __reduce__(self) -> Any:
        return _Destroy, ()


class WeightReader:
    """Whether weights were trained by another program since they were read."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Trains, int] = weakref.WeakKeyDictionary()

    def has_news(self, memory: DeviceMemory) -> bool:
        """Return whether weights of ``memory`` were trained since :meth:`note`."""
        return any(trainer.num_writes > self._seen.get(trainer, 0) for trainer in _trainers_of(memory))

    def note(self, memory: DeviceMemory) -> None:
        """Take the weights of ``memory`` for read."""
        for trainer in _trainers_of(memory):
            self._seen[trainer] = trainer.num_writes


def _trainers_of(memory: DeviceMemory) -> list[Trains]:
    trainers = [reference() for reference in _trainers.values()]
    return [
        trainer
        for trainer in trainers
        if trainer is not None
        and trainer.memory is not None
        and not memory.parameter_ids.isdisjoint(trainer.memory.parameter_ids)
    ]
