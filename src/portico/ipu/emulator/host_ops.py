"""``CPU``: operations of the host in the middle of a program."""

from collections.abc import Callable
from typing import Any

import torch

from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.faults import host_access
from portico.ipu.emulator.running import isRunningOnIpu
from portico.ipu.emulator.tracing.strict import with_values


class CPU:
    """A function that runs on the host, where a program for inference calls it.

    Args:
        layer_to_call: The function, or module.
        ID: Its name, unlike those of others.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self._layer_to_call = layer_to_call
        self.ID = ID

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return what the function returns.

        Raises:
            Error: In a program that trains.
        """
        if isRunningOnIpu() and torch.is_grad_enabled():
            raise Error(
                f"CPU operations are only supported in inference graphs; the model calls {self.ID!r} while it trains. "
                "Compute with torch's operations there."
            )
        with host_access():
            return with_values(self._layer_to_call, inputs, kwargs)
