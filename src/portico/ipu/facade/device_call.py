"""What stands where the model stands in a trainer."""

from collections.abc import Callable
from typing import Any

from torch import nn

CallModel = Callable[..., dict[str, Any]]


class DeviceCall(nn.Module):
    """Stands where the model stands, and runs it on IPUs.

    Args:
        call_model: Of the trainer whose programs run it.
        model: The model.
        training: Whether a call trains.
    """

    def __init__(self, call_model: CallModel, model: nn.Module, *, training: bool) -> None:
        super().__init__()
        self.module = model
        self._call_model = call_model
        self._trains = training

    def forward(self, **inputs: Any) -> dict[str, Any]:
        """Run a combined batch, or a part of one."""
        return self._call_model(self.module, inputs, is_training=self._trains)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)
