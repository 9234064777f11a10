"""Batches filled up to what a program takes, and outputs cut back to what was real."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portico.tree import map_tensors

_IGNORED_LABEL = -100
# Extractive heads ignore positions beyond the sequence; a negative one they take for the first token.
_IGNORED_POSITION = 2**30


def num_rows(inputs: Mapping[str, Any]) -> int:
    """Return the rows of a batch."""
    return next(len(tensor) for tensor in inputs.values() if isinstance(tensor, Tensor) and tensor.dim())


def filled_up(inputs: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return a batch of ``size`` rows: those there are, over and over."""
    rows = num_rows(inputs)
    if rows == size:
        return dict(inputs)
    index = torch.arange(size) % rows
    return {name: _rows(value, index, rows) for name, value in inputs.items()}


def with_ignored_labels(inputs: dict[str, Any], rows: int, label_names: Sequence[str]) -> dict[str, Any]:
    """Return a filled-up batch whose repeated rows have labels that losses leave out.

    Labels that are no integers cannot be left out (see :func:`row_by_row`).
    """
    marked = dict(inputs)
    for name in label_names:
        labels = inputs.get(name)
        if isinstance(labels, Tensor) and labels.dim() and not labels.is_floating_point():
            marked[name] = labels.clone()
            marked[name][rows:] = _IGNORED_POSITION if name.endswith("_positions") else _IGNORED_LABEL
    return marked


def has_float_labels(inputs: Mapping[str, Any], label_names: Sequence[str]) -> bool:
    """Return whether a batch has labels that no loss leaves out."""
    labels = [inputs.get(name) for name in label_names]
    return any(isinstance(value, Tensor) and value.is_floating_point() for value in labels)


def row_by_row(
    inputs: Mapping[str, Any], rows: range, *, size: int, micro_batch_size: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield batches in which each row fills a micro-batch, whose mean loss then is that of the row.

    Args:
        inputs: A batch.
        rows: Which of its rows.
        size: Rows of a call.
        micro_batch_size: Rows of a micro-batch.

    Yields:
        A batch of ``size`` rows, and how many micro-batches at its beginning have a row of their own.
    """
    num_all = num_rows(inputs)
    for start in range(rows.start, rows.stop, size // micro_batch_size):
        chosen = torch.arange(start, min(start + size // micro_batch_size, rows.stop))
        index = chosen.repeat_interleave(micro_batch_size)
        yield filled_up({name: _rows(value, index, num_all) for name, value in inputs.items()}, size), len(chosen)


def cut_back(outputs: dict[str, Any], rows: int, size: int) -> dict[str, Any]:
    """Return outputs without the rows beyond ``rows``; tensors without ``size`` rows stay as they are."""
    return {
        name: map_tensors(lambda tensor: tensor[:rows] if tensor.dim() and len(tensor) == size else tensor, value)
        for name, value in outputs.items()
    }


def weighted_loss(losses: Tensor, rows: int, size: int) -> Tensor:
    """Return the mean loss over real rows, from the mean losses of micro-batches.

    Args:
        losses: One loss for each micro-batch, in the order of the rows; or a single one.
        rows: Real rows.
        size: All rows.
    """
    losses = losses.float().reshape(-1)
    per_micro_batch = size // len(losses)
    starts = torch.arange(len(losses)) * per_micro_batch
    weights = (rows - starts).clamp(0, per_micro_batch).float()
    # The loss of a micro-batch without real rows may be NaN.
    return (losses[weights > 0] * weights[weights > 0]).sum() / rows


def _rows(value: Any, index: Tensor, rows: int) -> Any:
    return map_tensors(lambda tensor: tensor[index] if tensor.dim() and len(tensor) == rows else tensor, value)
