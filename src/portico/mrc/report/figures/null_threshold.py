"""What another threshold for "no answer" would have given.

Shape suffixes: Q questions, T thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portico.mrc.report.results import QuestionResult


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdCurve:
    """Scores of the whole set over the threshold: a question counts as unanswerable if its null odds exceed it.

    Args:
        thresholds_T: Ascending, ``float64 [T]``; the first declines every question, the last none.
        exact_T: Exact match, 0..100.
        f1_T: F1, 0..100.
    """

    thresholds_T: npt.NDArray[np.float64]
    exact_T: npt.NDArray[np.float64]
    f1_T: npt.NDArray[np.float64]

    @property
    def best(self) -> int:
        """The place of the best F1, the lowest threshold among equals."""
        return int(np.argmax(self.f1_T))


def threshold_curve(results: Sequence[QuestionResult]) -> ThresholdCurve | None:
    """Return the curve, or None if a question lacks null odds or an answer that could be given."""
    rows = [_row(result) for result in results]
    if not rows or any(row is None for row in rows):
        return None
    table = np.array(rows, dtype=np.float64)
    odds_Q, declined_Q, answered_Q2 = table[:, 0], table[:, 1], table[:, 2:]
    order_Q = np.argsort(odds_Q, kind="stable")
    gains_Q2 = (answered_Q2 - declined_Q[:, None])[order_Q]
    totals = declined_Q.sum() + np.concatenate([np.zeros((1, 2)), gains_Q2.cumsum(axis=0)])
    # A threshold cannot part equal odds: of each distinct value, the place after its last question counts.
    odds_T, last_T = _distinct(odds_Q[order_Q])
    thresholds_T = np.concatenate([[odds_T[0] - 1], odds_T])
    scores_T2 = 100 * totals[np.concatenate([[0], last_T + 1])] / len(rows)
    return ThresholdCurve(thresholds_T, scores_T2[:, 0], scores_T2[:, 1])


def _row(result: QuestionResult) -> tuple[float, ...] | None:
    """Return the null odds, the score of declining, and exact match and F1 of answering."""
    if result.null_odds is None or result.if_answered is None:
        return None
    return (result.null_odds, float(not result.golds), *result.if_answered)


def _distinct(sorted_values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    is_last = np.append(sorted_values[1:] != sorted_values[:-1], True)
    last = np.flatnonzero(is_last)
    return sorted_values[last], last
