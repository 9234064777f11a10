"""Where the answer lies in each window.

Shape suffixes: F features (windows), T tokens of all windows.
"""

import numpy as np
from transformers import PreTrainedTokenizerBase

from portico.mrc.arrays import Bools, Int64s
from portico.mrc.features.windows import Windows


def cls_positions(windows: Windows, tokenizer: PreTrainedTokenizerBase) -> Int64s:
    """Return the position in each window that stands for "no answer", ``int64 [F]``.

    It is the first CLS token, in a window without one the first BOS token, otherwise 0.
    """
    positions_F = np.zeros(len(windows.example_index_F), np.int64)
    for token_id in (tokenizer.bos_token_id, tokenizer.cls_token_id):
        if token_id is not None:
            first_F = windows.first_in_row(windows.input_ids_T == token_id)
            found_F = first_F < windows.row_starts[1:]
            positions_F[found_F] = (first_F - windows.row_starts[:-1])[found_F]
    return positions_F


def answer_positions(
    windows: Windows, chars_F2: Int64s, cls_positions_F: Int64s, *, compat_label_bug: bool = False
) -> tuple[Int64s, Bools]:
    """Return first and last token of the answer in every window, ``int64 [F, 2]``, and which hold it, ``bool [F]``.

    The first token is the last one that begins at or before the answer, the last token the first one that ends at or
    after it. A window that does not hold the whole answer gets its CLS position twice.

    Args:
        windows: The windows; the context's tokens are one block in each.
        chars_F2: Characters ``[start, end)`` of the answer in the context of each window, ``int64 [F, 2]``; -1 without
            one.
        cls_positions_F: From `cls_positions`.
        compat_label_bug: Search the first token beyond the context too, as the QA example of transformers does: an
            answer that begins in the last context token is then labelled as beginning at the end of the row.
    """
    first_F, last_F = context_bounds(windows)
    begin_T, end_T = windows.char_offsets_T2.T
    inside_F = (chars_F2[:, 0] >= 0) & (first_F <= last_F)
    # A window without context has no first token to look at; any index will do, because inside_F is False there.
    inside_F &= begin_T[np.minimum(first_F, len(begin_T) - 1)] <= chars_F2[:, 0]
    inside_F &= end_T[last_F] >= chars_F2[:, 1]
    positions_F2 = np.repeat(cls_positions_F[:, None], 2, axis=1)
    if inside_F.any():
        positions_F2[inside_F] = _positions_inside(
            windows, inside_F, chars_F2, (first_F, last_F), compat_label_bug=compat_label_bug
        )
    return positions_F2, inside_F


def context_bounds(windows: Windows) -> tuple[Int64s, Int64s]:
    """Return the flat index of the first and of the last context token of every window, ``int64 [F]`` each.

    Without context the last is before the first.
    """
    first_F = windows.first_in_row(windows.in_context_T)
    last_F = first_F + np.add.reduceat(windows.in_context_T, windows.row_starts[:-1], dtype=np.int64) - 1
    return first_F, last_F


def _positions_inside(
    windows: Windows, inside_F: Bools, chars_F2: Int64s, bounds: tuple[Int64s, Int64s], *, compat_label_bug: bool
) -> Int64s:
    """Return the positions in the windows marked as holding the whole answer, ``int64 [I, 2]``.

    Shape suffixes: I marked windows, K tokens of all of them.
    """
    length_I = windows.lengths_F[inside_F]
    row_K = np.repeat(np.arange(len(length_I)), length_I)
    token_K = np.flatnonzero(np.repeat(inside_F, windows.lengths_F))
    first_F, last_F = bounds
    before_K, after_K = token_K < first_F[inside_F][row_K], token_K > last_F[inside_F][row_K]
    begin_K, end_K = windows.char_offsets_T2[token_K].astype(np.int64).T
    chars_I2 = chars_F2[inside_F]
    beyond = max(end_K.max(), chars_I2.max()) + 1  # larger than any character
    stop_K = np.where(before_K, 0, np.where(after_K & (not compat_label_bug), beyond, begin_K))
    start_I = _first_above(stop_K, row_K, chars_I2[:, 0], beyond + 1) - 1
    stop_K = np.where(before_K, 0, np.where(after_K, beyond, end_K))
    end_I = _after_last_below(stop_K, row_K, chars_I2[:, 1], beyond + 1)
    return np.stack([start_I, end_I], axis=1) - (np.cumsum(length_I) - length_I)[:, None]


def _first_above(value_K: Int64s, row_K: Int64s, bound_I: Int64s, width: int) -> Int64s:
    """Return the first flat index of each row whose value exceeds the row's bound, or the row's end.

    A running maximum reaches a bound where the values first do, and it ascends, so that it can be searched; the row
    number in front keeps the rows apart.
    """
    ascending_K = np.maximum.accumulate(row_K * width + value_K)
    return np.searchsorted(ascending_K, np.arange(len(bound_I)) * width + bound_I, side="right")


def _after_last_below(value_K: Int64s, row_K: Int64s, bound_I: Int64s, width: int) -> Int64s:
    """Return the flat index after the last value of each row below the row's bound, or the row's start.

    The mirror of `_first_above`: a running minimum from the right.
    """
    ascending_K = np.minimum.accumulate((row_K * width + value_K)[::-1])[::-1]
    return np.searchsorted(ascending_K, np.arange(len(bound_I)) * width + bound_I, side="left")
