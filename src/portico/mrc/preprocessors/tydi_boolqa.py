"""TyDi QA for reading yes/no questions: the answer is marked by its passage.

Shape suffixes: F features (windows), T tokens of all windows.
"""

from typing import Any

import numpy as np

from portico.mrc.arrays import Int64s
from portico.mrc.features.gold import Gold
from portico.mrc.features.labelling import WindowLabels
from portico.mrc.features.labels import context_bounds
from portico.mrc.features.windows import Windows
from portico.mrc.preprocessors.tydiqa import TyDiQAPreprocessor
from portico.mrc.target_type import TargetType


class TyDiBoolQAPreprocessor(TyDiQAPreprocessor):
    """Labels windows that answer yes or no with the part of the gold passage that they hold.

    The part begins with the first context token that begins in the passage and ends with the last that ends in it,
    or where there is none with the first and the last context token.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
    """

    def _label(self, windows: Windows, gold: Gold, context_index_F: Int64s | None) -> WindowLabels:
        labels = super()._label(windows, gold, context_index_F)
        says_F = np.isin(labels.target_type_F, (TargetType.YES, TargetType.NO))
        positions_F2: Any = np.where(
            says_F[:, None], _passage_positions(windows, gold.passage_chars_E2), labels.positions_F2
        )
        return WindowLabels(positions_F2, labels.target_type_F)


def _passage_positions(windows: Windows, chars_F2: Int64s) -> Int64s:
    """Return the first and last token of a passage in every window, ``int64 [F, 2]``."""
    chars_T2 = np.repeat(chars_F2, windows.lengths_F, axis=0)
    begin_T, end_T = windows.char_offsets_T2.T
    # Tokens that lie in the passage in part count for neither end.
    begins_T = windows.in_context_T & (begin_T >= chars_T2[:, 0]) & (begin_T < chars_T2[:, 1])
    ends_T = windows.in_context_T & (end_T <= chars_T2[:, 1]) & (end_T > chars_T2[:, 0])
    first_F, last_F = context_bounds(windows)
    start_F = windows.first_in_row(begins_T)
    end_F = np.maximum.reduceat(np.where(ends_T, np.arange(len(ends_T)), -1), windows.row_starts[:-1])
    start_F = np.where(start_F < windows.row_starts[1:], start_F, first_F)
    end_F = np.where(end_F >= 0, end_F, last_F)
    return np.stack([start_F, end_F], axis=1) - windows.row_starts[:-1, None]
