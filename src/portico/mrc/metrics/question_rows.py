"""A few numbers of every question as the state of a metric."""

from typing import Any

import torch
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


class QuestionRows(Metric):
    """A metric that keeps rows of numbers, which processes put together in the order of their ranks.

    Args:
        **kwargs: As in ``torchmetrics.Metric``.
    """

    full_state_update = False
    higher_is_better = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._empty_rows: dict[str, torch.Tensor] = {}

    def add_rows(self, name: str, *shape: int, dtype: torch.dtype = torch.float64) -> None:
        """Declare a state of rows.

        Args:
            name: Of the state.
            *shape: Of one row.
            dtype: Of the numbers.
        """
        self.add_state(name, [], dist_reduce_fx="cat")
        self._empty_rows[name] = torch.empty(0, *shape, dtype=dtype)

    def append_rows(self, name: str, rows: Any) -> None:
        """Append rows to a state.

        Args:
            name: Of the state.
            rows: A sequence of rows, or a tensor ``[N, *shape]``.
        """
        empty = self._empty_rows[name]
        tensor = torch.as_tensor(rows, dtype=empty.dtype, device=self.device)
        getattr(self, name).append(tensor.reshape(-1, *empty.shape[1:]))

    def rows(self, name: str) -> torch.Tensor:
        """Return all rows of a state, ``[N, *shape]``, on the CPU."""
        parts = getattr(self, name)
        return dim_zero_cat(parts).cpu() if len(parts) else self._empty_rows[name]

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Put the rows of all processes together, of those without any too."""
        # torchmetrics would take a float32 vector for the rows of a process that has none, which cannot be gathered.
        for name, empty in self._empty_rows.items():
            if isinstance(getattr(self, name), list) and not getattr(self, name):
                getattr(self, name).append(empty.to(self.device))
        super().sync(*args, **kwargs)
