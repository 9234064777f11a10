"""Where the answer lies in each window.

Shape suffixes: E examples, F features (windows), T tokens of all windows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from portico.mrc.arrays import Int64s
from portico.mrc.features.windows import Windows


def answer_chars(answers: Sequence[Mapping[str, Any]]) -> Int64s:
    """Return the characters ``[start, end)`` of every example's first answer, ``int64 [E, 2]``; -1 without one."""
    chars = (
        (start[0], start[0] + len(answer["text"][0])) if len(start := answer["answer_start"]) else (-1, -1)
        for answer in answers
    )
    return np.array(list(chars), np.int64)


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
    windows: Windows, chars_E2: Int64s, cls_positions_F: Int64s, *, compat_label_bug: bool = False
) -> Int64s:
    """Return the first and last token of the answer in every window, ``int64 [F, 2]``.

    The first token is the last one that begins at or before the answer, the last token the first one that ends at or
    after it. A window that does not hold the whole answer gets its CLS position twice.

    Args:
        windows: The windows; the context's tokens are one block in each.
        chars_E2: From `answer_chars`.
        cls_positions_F: From `cls_positions`.
        compat_label_bug: Search the first token beyond the context too, as the QA example of transformers does: an
            answer that begins in the last context token is then labelled as beginning at the end of the row.
    """
    chars_F2 = chars_E2[windows.example_index_F]
    first_F = windows.first_in_row(windows.in_context_T)
    last_F = first_F + np.add.reduceat(windows.in_context_T.astype(np.int64), windows.row_starts[:-1]) - 1
    begin_T, end_T = windows.char_offsets_T2.astype(np.int64).T
    inside_F = (chars_F2[:, 0] >= 0) & (first_F <= last_F)
    # A window without context has no first token to look at; any index will do, because inside_F is False there.
    inside_F &= begin_T[np.minimum(first_F, len(begin_T) - 1)] <= chars_F2[:, 0]
    inside_F &= end_T[last_F] >= chars_F2[:, 1]

    row_T = np.repeat(np.arange(len(first_F)), windows.lengths_F)
    token_T = np.arange(len(row_T))
    before_T, after_T = token_T < first_F[row_T], token_T > last_F[row_T]
    beyond = max(end_T.max(), chars_F2.max()) + 1  # larger than any character
    stop_T = np.where(before_T, 0, np.where(after_T & (not compat_label_bug), beyond, begin_T))
    start_F = _first_above(stop_T, row_T, chars_F2[:, 0], beyond + 1) - 1
    stop_T = np.where(before_T, 0, np.where(after_T, beyond, end_T))
    end_F = _after_last_below(stop_T, row_T, chars_F2[:, 1], beyond + 1)
    positions_F2 = np.stack([start_F, end_F], axis=1) - windows.row_starts[:-1, None]
    return np.where(inside_F[:, None], positions_F2, cls_positions_F[:, None])


def _first_above(value_T: Int64s, row_T: Int64s, bound_F: Int64s, width: int) -> Int64s:
    """Return the first flat index of each row whose value exceeds the row's bound, or the row's end.

    A running maximum reaches a bound where the values first do, and it ascends, so that it can be searched; the row
    number in front keeps the rows apart.
    """
    ascending_T = np.maximum.accumulate(row_T * width + value_T)
    return np.searchsorted(ascending_T, np.arange(len(bound_F)) * width + bound_F, side="right")


def _after_last_below(value_T: Int64s, row_T: Int64s, bound_F: Int64s, width: int) -> Int64s:
    """Return the flat index after the last value of each row below the row's bound, or the row's start.

    The mirror of `_first_above`: a running minimum from the right.
    """
    ascending_T = np.minimum.accumulate((row_T * width + value_T)[::-1])[::-1]
    return np.searchsorted(ascending_T, np.arange(len(bound_F)) * width + bound_F, side="left")
