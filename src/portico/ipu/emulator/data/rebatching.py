"""Batches of workers, joined and cut to combined ones."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from portico.ipu.emulator.executor.layout import map_structure


def rebatched(batches: Iterable[Any], size: int, *, drop_last: bool) -> Iterator[Any]:
    """Yield batches of ``size`` rows from batches of any size.

    Args:
        batches: Nested tensors, with rows along dimension 0.
        size: Rows of a batch.
        drop_last: Leave out a last one with fewer.
    """
    rest: Any = None
    for batch in batches:
        rest = batch if rest is None else _joined(rest, batch)
        while _num_rows(rest) >= size:
            yield _rows(rest, 0, size)
            rest = _rows(rest, size, _num_rows(rest))
    if rest is not None and _num_rows(rest) and not drop_last:
        yield rest


def _rows(batch: Any, start: int, end: int) -> Any:
    return map_structure(lambda leaf: leaf[start:end], batch)


def _num_rows(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return len(batch)
    return _num_rows(next(iter(batch.values() if isinstance(batch, Mapping) else batch)))


def _joined(first: Any, second: Any) -> Any:
    leaves = iter(_leaves(second))
    return map_structure(lambda leaf: torch.cat([leaf, next(leaves)]), first)


def _leaves(batch: Any) -> list[Tensor]:
    leaves: list[Tensor] = []
    map_structure(leaves.append, batch)
    return leaves
