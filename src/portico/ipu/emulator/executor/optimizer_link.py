"""The user's optimizer and what a program knows of it."""

from typing import Any

import torch
from torch import Tensor, nn

from portico.ipu.emulator.device.loss_scaling import AutomaticLossScaling
from portico.ipu.emulator.device.optimizer import DeviceOptimizer
from portico.ipu.emulator.optim import SGD, Optimizer

State = tuple[dict[str, dict[str, Tensor]], dict[str, Any]]


class OptimizerLink:
    """Keeps hyperparameters and state of both sides apart, and exchanges them when told to.

    Args:
        optimizer: The user's; SGD with a rate of 0.01 when there is none.

    Attributes:
        users: The user's optimizer.
        device: The program's, once it is compiled.
        scaling: Automatic loss scaling, if it is on.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.users = optimizer
        self.device: DeviceOptimizer | None = None
        self.scaling: AutomaticLossScaling | None = None

    def compile(self, model: nn.Module, *, scales_automatically: bool) -> None:
        """Take the present hyperparameters into a program."""
        if self.users is None:
            self.users = SGD(model.parameters(), lr=0.01)
        self.device = DeviceOptimizer(self.users, model.named_parameters())
        if scales_automatically:
            self.scaling = AutomaticLossScaling(self.device.loss_scaling)
        self._connect()

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the present hyperparameters of ``optimizer``, which is the user's from now on."""
        if self.device is not None:
            self.device.take(optimizer)
        if self.users is not optimizer:
            self.disconnect()
        self.users = optimizer
        self._connect()

    def load_pending_state(self) -> None:
        """Give the program the state that the user has loaded since the last call."""
        if not isinstance(self.users, Optimizer) or self.device is None:
            return
        pending = self.users.take_pending_state()
        if pending is not None and pending[0] is not None:
            self.device.restore(*pending)
            if self.scaling is not None:
                self.scaling.scaling = float(pending[1]["loss_scaling"])

    def disconnect(self) -> None:
        """Leave the state of the program with the user's optimizer."""
        if isinstance(self.users, Optimizer):
            self.users.connect(None)

    @property
    def is_current(self) -> bool:
        """Whether the program has the user's present hyperparameters."""
        return self.device is None or self.users is None or not self.device.differs_from(self.users)

    @property
    def loss_scaling(self) -> float:
        """Factor of the loss in the next update."""
        if self.scaling is not None:
            return self.scaling.scaling
        return self.device.loss_scaling if self.device is not None else 1.0

    def _connect(self) -> None:
        if isinstance(self.users, Optimizer) and self.device is not None:
            self.users.connect(self._export)

    def _export(self) -> State:
        assert self.device is not None
        self.load_pending_state()
        state, whole = self.device.export()
        if self.scaling is not None:
            whole["loss_scaling"] = self.scaling.scaling
        return state, whole
