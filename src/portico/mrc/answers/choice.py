"""Which of the ranked spans is the answer.

Shape suffixes: E examples, N ranked spans.
"""

import numpy as np
import numpy.typing as npt

from portico.mrc.answers.span_table import RankedSpans, Spans
from portico.mrc.arrays import Bools, Int64s

LITERAL_EMPTY = -1
"""Both characters of the span that stands for the text "empty"."""


def has_text(spans: Spans) -> Bools:
    """Tell which spans have a text; "no answer" has none, ``bool [N]``."""
    start_N, end_N = spans.chars_N2.T
    textual_N: Bools = (end_N > start_N) | (start_N == LITERAL_EMPTY)
    return textual_N


def with_literal_empty(ranked: RankedSpans) -> tuple[RankedSpans, Bools]:
    """Put a span of score 0 that reads "empty" before the others of every example without a text to offer.

    So does the QA example of transformers, where no span was found, or a single one without text.

    Returns:
        The spans, and which examples were given one, ``bool [E]``.
    """
    texts = np.concatenate([[0], np.cumsum(has_text(ranked.spans))])
    texts_E = texts[ranked.row_starts[1:]] - texts[ranked.row_starts[:-1]]
    needs_E = (ranked.counts_E <= 1) & (texts_E == 0)
    before = ranked.row_starts[:-1][needs_E]
    chars_N2, *scores = ranked.spans.columns()
    spans = Spans(
        np.insert(chars_N2, before, LITERAL_EMPTY, axis=0), *(np.insert(score_N, before, 0) for score_N in scores)
    )
    return RankedSpans(spans, ranked.row_starts + np.concatenate([[0], np.cumsum(needs_E)])), needs_E


def best_spans(ranked: RankedSpans) -> Int64s:
    """Return the best span of every example, ``int64 [E]``, -1 where there is none."""
    return np.where(ranked.counts_E > 0, ranked.row_starts[:-1], -1)


def best_spans_or_null(ranked: RankedSpans, nulls: Spans, threshold: float) -> tuple[Int64s, npt.NDArray[np.float64]]:
    """Return the best span with a text of every example, or -1 where "no answer" beats it.

    Args:
        ranked: The spans.
        nulls: "No answer" of every example.
        threshold: "No answer" is the answer where its score exceeds the span's by more than this.

    Returns:
        The spans, ``int64 [E]``, and by how much the score of "no answer" exceeds theirs, ``float64 [E]``; where no
        span has a text, its own score.
    """
    textual = np.append(np.flatnonzero(has_text(ranked.spans)), len(ranked.spans))
    best_E = textual[np.searchsorted(textual, ranked.row_starts[:-1])]
    found_E = best_E < ranked.row_starts[1:]
    odds_E = nulls.score_N.copy()
    best = best_E[found_E]
    # One logit after the other, as transformers does it: their rounded sum may differ in the last bit.
    odds_E[found_E] -= ranked.spans.start_logit_N[best]
    odds_E[found_E] -= ranked.spans.end_logit_N[best]
    return np.where(found_E & ~(odds_E > threshold), best_E, -1), odds_E.astype(np.float64)
