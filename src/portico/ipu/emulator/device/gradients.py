"""Gradients of micro-batches on their way to one weight update."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from portico.ipu.emulator.device.half import to_half
from portico.ipu.emulator.replica_groups import ReplicaGroups

Gradients = dict[str, list[Tensor]]


class GradientAccumulator:
    """Accumulates in the declared format, then reduces over micro-batches and replicas.

    Args:
        parameters: The model's parameters by name.
        groups: Which replicas share each parameter.
        num_accumulated: Micro-batches of a replica.
        takes_mean: Whether the mean is taken, not the sum.
        running_mean: Whether the mean is kept while accumulating; accumulators in half precision do so always.
        accum_type: Format of the accumulators; that of each weight when ``None``.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        groups: Mapping[str, ReplicaGroups],
        *,
        num_accumulated: int,
        takes_mean: bool,
        running_mean: bool,
        accum_type: torch.dtype | None,
    ) -> None:
        self._parameters = parameters
        self._groups = groups
        self._num_accumulated = num_accumulated
        self._takes_mean = takes_mean
        self._running = takes_mean and (running_mean or accum_type is torch.float16)
        self._accum_type = accum_type
        self._sums: dict[str, list[Tensor | None]] = {}
        self._counts: dict[tuple[str, int], int] = {}

    def take(self, replica: int) -> list[Tensor]:
        """Add the gradients that a backward pass left in the parameters, and return them."""
        taken = []
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                self._add(name, self._groups[name].group_of(replica), gradient)
                taken.append(gradient)
        return taken

    def _add(self, name: str, group: int, gradient: Tensor) -> None:
        kept_in = self._accum_type or gradient.dtype
        gradient = _rounded(gradient, kept_in)
        sums = self._sums.setdefault(name, [None] * self._groups[name].num_groups)
        count = self._counts[name, group] = self._counts.get((name, group), 0) + 1
        total = sums[group]
        if total is None:
            sums[group] = gradient
            return
        wide, taken = _widened(total), _widened(gradient)
        sums[group] = _rounded(wide + (taken - wide) / count if self._running else wide + taken, kept_in)

    def reduced(self, loss_scaling: float) -> Gradients:
        """Return the gradients of one update, in single precision or better, without the loss scaling.

        Args:
            loss_scaling: Factor that the losses had.
        """
        return {
            name: [self._unscaled(name, total, loss_scaling) for total in sums if total is not None]
            for name, sums in self._sums.items()
        }

    def _unscaled(self, name: str, total: Tensor, loss_scaling: float) -> Tensor:
        divisor = loss_scaling
        if self._takes_mean and not self._running:
            divisor *= self._num_accumulated * self._groups[name].num_members
        total = _widened(total)
        return total if divisor == 1 else total / divisor


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return to_half(tensor) if dtype is torch.float16 else tensor.to(dtype)
