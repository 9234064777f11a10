"""Which row of a packed batch each feature lies in.

Shape suffix: B features of a batch.
"""

from dataclasses import dataclass

import numpy as np

from portico.mrc.arrays import Int64s


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the features of a batch lie.

    Attributes:
        row_B: The row of each feature, ``int64 [B]``.
        start_B: Its first token in the row, ``int64 [B]``.
        num_rows: Rows of the packed batch.
        length: Tokens of its longest row.
    """

    row_B: Int64s
    start_B: Int64s
    num_rows: int
    length: int


def pack(lengths_B: Int64s, capacity: int) -> Layout:
    """Lay features into rows, the longest first, each into the first row that has room.

    Args:
        lengths_B: Tokens of each feature, ``int64 [B]``.
        capacity: Most tokens of a row; a longer feature gets a row of its own.
    """
    row_B, start_B = np.zeros_like(lengths_B), np.zeros_like(lengths_B)
    filled: list[int] = []
    for feature in np.argsort(-lengths_B, kind="stable").tolist():
        length = int(lengths_B[feature])
        row = next((row for row, used in enumerate(filled) if used + length <= capacity), len(filled))
        if row == len(filled):
            filled.append(0)
        row_B[feature], start_B[feature] = row, filled[row]
        filled[row] += length
    return Layout(row_B, start_B, len(filled), max(filled))
