"""Lookups in a piece of a table."""

import torch
from torch import Tensor
from torch.nn import functional


def rows_of_piece(index: Tensor, piece: Tensor, first: int, padding_idx: int | None) -> Tensor:
    """Return the rows that ``index`` points at in a piece of a table, and zeros where it points elsewhere.

    Args:
        index: Rows of the whole table, ``int [...]``.
        piece: Some of its rows, ``float [rows, features]``.
        first: The first of them in the whole table.
        padding_idx: Row of the whole table that is looked up, and gets no gradient.

    Returns:
        ``float [..., features]``; the sum over all pieces is the lookup in the whole table.
    """
    local = index - first
    padding = None if padding_idx is None or not 0 <= padding_idx - first < len(piece) else padding_idx - first
    inside = (local >= 0) & (local < len(piece))
    rows = functional.embedding(local.clamp(0, len(piece) - 1), piece, padding)
    return torch.where(inside.unsqueeze(-1), rows, torch.zeros_like(rows))
