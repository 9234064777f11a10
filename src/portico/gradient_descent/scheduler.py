"""A value in an optimizer's parameter groups that changes with the training."""

from typing import Any

import numpy as np
import torch

from portico.gradient_descent.errors import ConfigurationError


class Scheduler:
    """Sets one field of every parameter group.

    :meth:`step` is called after each epoch, :meth:`step_batch` before each optimizer step. A subclass says what the
    values are in :meth:`get_values`.

    Args:
        optimizer: Whose groups are changed.
        param_group_field: Field that is set, such as ``"lr"``.
        last_epoch: Epochs that are behind, less one.

    Attributes:
        base_values: What the field was at the start, for each group.

    Raises:
        ConfigurationError: If a group does not have the field.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, param_group_field: str, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        self._initial_param_group_field = f"initial_{param_group_field}"
        for index, group in enumerate(optimizer.param_groups):
            if last_epoch == -1 and param_group_field in group:
                group.setdefault(self._initial_param_group_field, group[param_group_field])
            if self._initial_param_group_field not in group:
                raise ConfigurationError(
                    f"{type(self).__name__} changes `{param_group_field}`, which parameter group {index} of "
                    f"{type(optimizer).__name__} does not have; choose an optimizer that has it, or another scheduler."
                )
        self.base_values = [group[self._initial_param_group_field] for group in optimizer.param_groups]
        self.last_epoch = last_epoch

    def get_values(self) -> list[float]:
        """Return the value for each group; by default it stays what it is."""
        return [group[self.param_group_field] for group in self.optimizer.param_groups]

    def step(self, metric: float | None = None) -> None:
        """Take the end of an epoch into account.

        Args:
            metric: Validation metric of the epoch, if there is one.
        """
        self.last_epoch += 1
        self.metric = metric
        self._assign()

    def step_batch(self, batch_num_total: int | None = None) -> None:
        """Take an optimizer step into account; by default nothing changes between epochs.

        Args:
            batch_num_total: Number of the step, from 1.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        self.__dict__.update(state_dict)

    def _assign(self) -> None:
        for group, value in zip(self.optimizer.param_groups, self.get_values(), strict=True):
            group[self.param_group_field] = value.item() if isinstance(value, np.generic) else value
