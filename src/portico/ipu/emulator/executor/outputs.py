"""Which micro-batch results a call returns, and in what form."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portico.ipu.emulator.enums import OutputMode
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.executor.inputs import device_dtype
from portico.ipu.emulator.executor.layout import BatchLayout, MicroBatch, map_structure


class OutputCollector:
    """Keeps the results of micro-batches that the output mode asks for, and joins them.

    Args:
        mode: ``Final`` (the last micro-batch of each replica), ``EveryN`` (all micro-batches of every n-th device
            iteration), ``All``, or ``Sum`` (of each replica, over its micro-batches).
        period: Of ``EveryN``.
        layout: The combined batch.
    """

    def __init__(self, mode: OutputMode, period: int, layout: BatchLayout) -> None:
        self._mode = mode
        self._period = period
        self._layout = layout
        self._kept: dict[tuple[int, int, int], Any] = {}

    def add(self, micro_batch: MicroBatch, outputs: Any) -> None:
        """Take the outputs of a micro-batch."""
        place = (micro_batch.iteration, micro_batch.accumulation, micro_batch.replica)
        if self._mode is OutputMode.Sum:
            place = (0, 0, micro_batch.replica)
            held = self._kept.get(place)
            outputs = _snapshot(outputs) if held is None else _combine(torch.add, [held, outputs])
            self._kept[place] = outputs
        elif self._is_wanted(micro_batch):
            self._kept[place] = _snapshot(outputs)

    def result(self) -> Any:
        """Return the joined outputs, in containers like the model's.

        Scalars of one micro-batch stay scalars, those of several become a vector.
        """
        kept = [self._kept[place] for place in sorted(self._kept)]
        return map_structure(_to_host, _combine(_concatenate, kept)) if kept else None

    def _is_wanted(self, micro_batch: MicroBatch) -> bool:
        if self._mode is OutputMode.All:
            return True
        if self._mode is OutputMode.EveryN:
            return (micro_batch.iteration + 1) % self._period == 0
        last = (self._layout.device_iterations - 1, self._layout.gradient_accumulation - 1)
        return (micro_batch.iteration, micro_batch.accumulation) == last


def without_backward(outputs: Any) -> Any:
    """Return what a training model returned, with tensors whose ``backward`` raises ``Error``."""
    return map_structure(_sealed, outputs)


def _sealed(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        leaf.backward = _refuse_backward  # type: ignore[method-assign]
    return leaf


def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model: a call of a training model makes the "
        "backward pass and the weight update by itself."
    )


def _snapshot(outputs: Any) -> Any:
    # An output may be a weight, a buffer or an input, which later micro-batches change.
    return map_structure(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, outputs)


def _combine(function: Callable[..., Any], outputs: list[Any]) -> Any:
    first = outputs[0]
    if len(outputs) == 1:
        return first
    leaves = [_leaves(one) for one in outputs]
    columns = iter(zip(*leaves, strict=True))

    def combined(_: Any) -> Any:
        column = next(columns)
        if not isinstance(column[0], Tensor):
            return column[0]
        return function(*column) if function is torch.add else function(column)

    return map_structure(combined, first)


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = []
    map_structure(leaves.append, value)
    return leaves


def _concatenate(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(tensors) if not tensors[0].dim() else torch.cat(tensors)


def _to_host(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.int() if leaf.dtype is torch.int64 else leaf.to(device_dtype(leaf.dtype))
