"""The training labels of windows.

Shape suffixes: C pairs of a question and a context, F features (windows).
"""

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from portico.mrc.arrays import Bools, Int64s
from portico.mrc.features.gold import Gold
from portico.mrc.features.labels import answer_positions, cls_positions, context_bounds
from portico.mrc.features.windows import Windows
from portico.mrc.target_type import TargetType


@dataclass(frozen=True, eq=False)
class WindowLabels:
    """What a reader learns about each window.

    Attributes:
        positions_F2: First and last token of the answer, ``int64 [F, 2]``; the CLS token twice without one.
        target_type_F: The `TargetType` of each window, ``int64 [F]``.
    """

    positions_F2: Int64s
    target_type_F: Int64s


def label_windows(
    windows: Windows,
    gold: Gold,
    context_index_F: Int64s | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    compat_label_bug: bool,
) -> WindowLabels:
    """Label windows by PrimeQA's rules.

    A window without the passage that holds the answer has no answer. One with the passage has the answer's span if it
    holds all of it, otherwise yes, no or the passage as its answer.

    Args:
        windows: ``F`` windows.
        gold: The answer to the question of each window, of ``F`` rows.
        context_index_F: Which of its question's contexts each window was cut from, ``int64 [F]``; ``None`` where every
            question has one context, so that its passages are spans of characters.
        tokenizer: The tokenizer that made the windows.
        compat_label_bug: As in :func:`~portico.mrc.features.labels.answer_positions`.
    """
    has_passage_F = _has_passage(windows, gold, context_index_F)
    chars_F2 = np.where(has_passage_F[:, None], gold.chars_E2, -1)
    positions_F2, holds_span_F = answer_positions(
        windows, chars_F2, cls_positions(windows, tokenizer), compat_label_bug=compat_label_bug
    )
    without_span_F = np.where(gold.chars_E2[:, 0] >= 0, TargetType.PASSAGE_ANSWER, gold.answer_type_E)
    type_F = np.where(holds_span_F, TargetType.SPAN_ANSWER, without_span_F)
    return WindowLabels(positions_F2, np.where(has_passage_F, type_F, TargetType.NO_ANSWER).astype(np.int64))


def _has_passage(windows: Windows, gold: Gold, context_index_F: Int64s | None) -> Bools:
    if context_index_F is not None:
        return gold.has_answer_E & (context_index_F == gold.passage_E)
    first_F, last_F = context_bounds(windows)
    begin_F = windows.char_offsets_T2[np.minimum(first_F, len(windows.char_offsets_T2) - 1), 0]
    end_F = windows.char_offsets_T2[last_F, 1]
    touches_F = (gold.passage_chars_E2[:, 0] <= end_F) & (gold.passage_chars_E2[:, 1] >= begin_F)
    return gold.has_answer_E & touches_F & (first_F <= last_F)
