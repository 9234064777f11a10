"""Optimizers that update one parameter after the other."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch


class ParameterwiseOptimizer(torch.optim.Optimizer, ABC):
    """Takes a step in each parameter that has a gradient; a subclass says how."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; return what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    @abstractmethod
    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        """Change ``parameter`` and its state in place, without recording gradients."""
