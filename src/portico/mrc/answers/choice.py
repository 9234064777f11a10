"""Which of the ranked spans is the answer.

Shape suffixes: E examples, N ranked spans.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from portico.mrc.answers.span_table import RankedSpans, Spans
from portico.mrc.answers.span_texts import LITERAL_EMPTY
from portico.mrc.arrays import Bools, Int64s
from portico.mrc.features.labels import TargetType


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
    if not needs_E.any():
        return ranked, needs_E
    before = ranked.row_starts[:-1][needs_E]
    chars_N2, *others = ranked.spans.columns()
    spans = Spans(
        np.insert(chars_N2, before, LITERAL_EMPTY, axis=0), *(np.insert(other, before, 0, axis=0) for other in others)
    )
    return RankedSpans(spans, ranked.row_starts + np.concatenate([[0], np.cumsum(needs_E)])), needs_E


@dataclass(frozen=True, eq=False)
class Choice:
    """The answer to every question.

    Attributes:
        span_E: The span with the best text, ``int64 [E]``, -1 where there is none.
        null_odds_E: By how much the score of "no answer" exceeds that span's, ``float64 [E]``; where there is none,
            its own score; ``None`` if "no answer" cannot be predicted.
        threshold: "No answer" is predicted where the odds exceed it.
        type_E: The kind of answer (:class:`~portico.mrc.features.labels.TargetType`), ``int64 [E]``.
    """

    span_E: Int64s
    null_odds_E: npt.NDArray[np.float64] | None
    threshold: float
    type_E: Int64s

    @property
    def chosen_E(self) -> Int64s:
        """The span that is the answer, ``int64 [E]``, -1 where no span is."""
        is_span_E = self.type_E == TargetType.SPAN_ANSWER
        if self.null_odds_E is not None:
            is_span_E &= ~(self.null_odds_E > self.threshold)
        return np.where(is_span_E, self.span_E, -1)


def choose(ranked: RankedSpans, nulls: Spans | None, threshold: float, type_E: Int64s) -> Choice:
    """Choose between spans and "no answer".

    Args:
        ranked: The spans.
        nulls: "No answer" of every example; ``None`` if it cannot be predicted.
        threshold: "No answer" is the answer where its score exceeds the span's by more than this.
        type_E: The kind of answer, ``int64 [E]``.
    """
    if nulls is None:
        return Choice(np.where(ranked.counts_E > 0, ranked.row_starts[:-1], -1), None, threshold, type_E)
    textual = np.append(np.flatnonzero(has_text(ranked.spans)), len(ranked.spans))
    best_E = textual[np.searchsorted(textual, ranked.row_starts[:-1])]
    found_E = best_E < ranked.row_starts[1:]
    odds_E = nulls.score_N.copy()
    best = best_E[found_E]
    # One logit after the other, as transformers does it: their rounded sum may differ in the last bit.
    odds_E[found_E] -= ranked.spans.start_logit_N[best]
    odds_E[found_E] -= ranked.spans.end_logit_N[best]
    return Choice(np.where(found_E, best_E, -1), odds_E.astype(np.float64), threshold, type_E)
