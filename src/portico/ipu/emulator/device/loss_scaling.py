"""Loss scaling that follows the size of the gradients."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

# A gradient value above this share of what its format can hold is about to overflow.
_EDGE = 0.125
# More than this share of such values, and the scaling is too large.
_TOLERATED_SHARE = 1e-7


class AutomaticLossScaling:
    """Doubles the loss scaling after every update, or halves it when gradients come near the end of their format.

    Args:
        initial: First scaling.
    """

    def __init__(self, initial: float) -> None:
        self.scaling = initial
        self._num_values = 0
        self._num_large = 0
        # The scaled loss starts in its own format, in which the scaling itself has to be finite.
        self._most = float("inf")

    def limit(self, loss: Tensor) -> None:
        """Keep the scaling within the format of ``loss``: powers of two up to the largest it can hold."""
        self._most = 2.0 ** (math.frexp(torch.finfo(loss.dtype).max)[1] - 1)

    def observe(self, gradients: Iterable[Tensor]) -> None:
        """Count the values of scaled gradients of a micro-batch."""
        for gradient in gradients:
            edge = _EDGE * torch.finfo(gradient.dtype).max
            # A NaN is not smaller than the edge either.
            self._num_large += gradient.numel() - int((gradient.abs() <= edge).sum())
            self._num_values += gradient.numel()

    def update(self) -> None:
        """Choose the scaling of the next update from what was observed since the last."""
        too_large = self._num_large > _TOLERATED_SHARE * self._num_values
        self.scaling = min(self.scaling * (0.5 if too_large else 2.0), self._most)
        self._num_values = self._num_large = 0
