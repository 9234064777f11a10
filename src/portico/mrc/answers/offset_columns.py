"""The offsets of all features as two arrays, read from Arrow's memory where they lie in it.

Shape suffixes: F features, T tokens of all features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from portico.mrc.arrays import Int32s, Int64s
from portico.mrc.datasets.examples import arrow_column

_OUTSIDE = (-1, -1)


def offset_column(features: Sequence[Mapping[str, Any]]) -> tuple[Int64s, Int32s]:
    """Return where each row begins and where the last ends, ``int64 [F + 1]``, and the offsets, ``int32 [T, 2]``.

    Args:
        features: Mappings with ``offset_mapping``, a pair of characters a token or ``None`` outside the context, and
            perhaps ``token_is_max_context``; a list, or a ``datasets.Dataset``, whose column is not made into Python
            objects.
    """
    names = getattr(features, "column_names", ())
    is_arrow = hasattr(features, "with_format") and "token_is_max_context" not in names
    read = _of_arrow(features) if is_arrow else None
    return read or _of_rows(features)


def _of_arrow(features: Any) -> tuple[Int64s, Int32s] | None:
    """Read the column of a data set; ``None`` if a value is no pair."""
    rows = arrow_column(features, "offset_mapping")
    pairs = rows.flatten()
    counts_T = pairs.value_lengths().fill_null(0).to_numpy()
    is_pair_T = counts_T == 2
    if not (is_pair_T | (counts_T == 0)).all():
        return None
    chars = np.full(2 * len(counts_T), -1, np.int32)
    values = pairs.flatten().to_numpy(zero_copy_only=False).astype(np.int32)
    chars.view(np.int64)[is_pair_T] = values.view(np.int64)  # both characters at once: four times as fast as rows
    lengths_F = rows.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return np.concatenate([[0], np.cumsum(lengths_F)]), chars.reshape(-1, 2)


def _of_rows(features: Sequence[Mapping[str, Any]]) -> tuple[Int64s, Int32s]:
    lengths: list[int] = []
    offsets: list[tuple[int, int]] = []
    for feature in features:
        row = _row_offsets(feature)
        lengths.append(len(row))
        offsets.extend(row)
    return np.cumsum([0, *lengths]), np.array(offsets, np.int32).reshape(-1, 2)


def _row_offsets(feature: Mapping[str, Any]) -> list[tuple[int, int]]:
    row = [tuple(pair) if pair else _OUTSIDE for pair in feature["offset_mapping"]]
    max_context = feature.get("token_is_max_context")
    if max_context is not None:
        # A span may begin only in the window that gives its first token the most context.
        row = [(begin if max_context.get(str(t), False) else -1, end) for t, (begin, end) in enumerate(row)]
    return row
