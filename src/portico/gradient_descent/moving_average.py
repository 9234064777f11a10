"""Moving averages of a model's parameters."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from portico.gradient_descent.construction import ConfigurationError, Registrable


class MovingAverage(Registrable, ABC):
    """Keeps an average of every parameter, and swaps it in on request.

    Args:
        parameters: Pairs of name and parameter; the averages start with their current values.
    """

    default_implementation = "exponential"

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._parameters = list(parameters)
        self._shadows = {name: parameter.detach().clone() for name, parameter in self._parameters}
        self._backups = {name: parameter.detach().clone() for name, parameter in self._parameters}
        self._is_assigned = False

    @abstractmethod
    def apply(self, num_updates: int | None = None) -> None:
        """Update the averages with the current values, at optimizer step ``num_updates``, from 1."""

    def assign_average_value(self) -> None:
        """Copy the averages into the parameters, in place; their values are backed up."""
        for name, parameter in self._parameters:
            self._backups[name].copy_(parameter.detach())
            parameter.data.copy_(self._shadows[name])

    def restore(self) -> None:
        """Undo :meth:`assign_average_value`."""
        for name, parameter in self._parameters:
            parameter.data.copy_(self._backups[name])

    @contextmanager
    def assigned(self) -> Iterator[None]:
        """Return a context in which the parameters hold the averages; nested contexts do nothing."""
        if self._is_assigned:
            yield
            return
        self.assign_average_value()
        self._is_assigned = True
        try:
            yield
        finally:
            self._is_assigned = False
            self.restore()

    def move_to_parameters(self) -> None:
        for name, parameter in self._parameters:
            self._shadows[name] = self._shadows[name].to(parameter.device)
            self._backups[name] = self._backups[name].to(parameter.device)

    def state_dict(self) -> dict[str, Any]:
        """Return averages and backups; while the averages are assigned, the backups are the trained values."""
        return {"shadows": self._shadows, "backups": self._backups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for name, _ in self._parameters:
            self._shadows[name].copy_(state_dict["shadows"][name])
            self._backups[name].copy_(state_dict["backups"][name])


@MovingAverage.register("exponential")
class ExponentialMovingAverage(MovingAverage):
    """An average in which older values have exponentially smaller weights.

    Args:
        parameters: Pairs of name and parameter.
        decay: Largest weight of the average against the new value.
        numerator: With ``denominator``, lets the average move faster at the start: in step ``n`` the weight is at
            most ``(numerator + n) / (denominator + n)``.
        denominator: See ``numerator``.

    Raises:
        ConfigurationError: If ``decay`` is not between 0 and 1.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.Tensor]],
        decay: float = 0.9999,
        numerator: float = 1.0,
        denominator: float = 10.0,
    ) -> None:
        if not 0 <= decay <= 1:
            raise ConfigurationError(f"`decay={decay}` of the moving average is out of range; set it between 0 and 1.")
        super().__init__(parameters)
        self._decay = decay
        self._numerator = numerator
        self._denominator = denominator

    def apply(self, num_updates: int | None = None) -> None:
        decay = self._decay
        if num_updates is not None:
            # The rule of tf.train.ExponentialMovingAverage, as in AllenNLP: at first the average follows quickly.
            decay = min(decay, (self._numerator + num_updates) / (self._denominator + num_updates))
        for name, parameter in self._parameters:
            self._shadows[name].mul_(decay).add_((1 - decay) * parameter.detach())
