"""Precision, recall and F1 of answering only with a score from some threshold up, as TyDi QA and NQ report them.

Shape suffixes: E questions, T thresholds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

COLUMNS = ("has_gold", "has_prediction", "worth", "score")
"""Whether there is a gold answer, whether one was predicted, what it is worth in 0..1, and how sure the model was."""


class Quality(NamedTuple):
    """How good the answers from a threshold up are, each in 0..1.

    Attributes:
        f1: Harmonic mean of the two others.
        precision: Worth of the predicted answers over their number.
        recall: Worth of the predicted answers over the number of gold answers.
        threshold: Lowest score that counts as an answer.
    """

    f1: float
    precision: float
    recall: float
    threshold: float


def quality_of_all(outcomes_E4: Doubles) -> Quality:
    """Return the quality of all predicted answers, whatever their scores.

    Args:
        outcomes_E4: The questions' outcomes; columns as in `COLUMNS`.
    """
    num_gold, num_predicted, worth = (float(outcomes_E4[:, column].sum()) for column in range(3))
    precision, recall = (worth / number if number else 0.0 for number in (num_predicted, num_gold))
    return Quality(_f1(precision, recall), precision, recall, -np.inf)


class PrefixSweep:
    """The questions in order of their scores, and what answering only the first of them would score.

    Args:
        outcomes_E4: The questions' outcomes; columns as in `COLUMNS`.
    """

    def __init__(self, outcomes_E4: Doubles) -> None:
        descending_E4 = outcomes_E4[np.argsort(-outcomes_E4[:, 3], kind="stable")]
        has_gold_E, has_prediction_E, worth_E, score_E = descending_E4.T
        # Questions of equal score are answered together or not at all.
        last_T = np.flatnonzero(np.append(score_E[1:] != score_E[:-1], True)) if len(score_E) else np.empty(0, int)
        worth_T = np.add.accumulate(worth_E)[last_T]
        self.threshold_T = score_E[last_T]
        self.precision_T = _safe_divide(worth_T, np.add.accumulate(has_prediction_E)[last_T])
        self.recall_T = _safe_divide(worth_T, has_gold_E.sum())

    def best(self) -> Quality:
        """Return the threshold with the best F1, the highest of several; all zeros where no F1 is positive."""
        f1_T = _safe_divide(2 * self.precision_T * self.recall_T, self.precision_T + self.recall_T)
        if not f1_T.any():
            return Quality(0.0, 0.0, 0.0, 0.0)
        t = int(f1_T.argmax())
        return Quality(*map(float, (f1_T[t], self.precision_T[t], self.recall_T[t], self.threshold_T[t])))

    def recall_at_precision(self, targets: Sequence[float]) -> dict[float, tuple[float, float]]:
        """Return the best recall at which precision is a target at least, with that precision; zeros if it never is.

        Args:
            targets: Precisions in 0..1.
        """
        found = {}
        for target in targets:
            recall_T = np.where(self.precision_T >= target, self.recall_T, 0.0)
            t = int(recall_T.argmax()) if recall_T.any() else None
            found[target] = (0.0, 0.0) if t is None else (float(recall_T[t]), float(self.precision_T[t]))
        return found


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _safe_divide(dividend_T: Doubles, divisor_T: Doubles) -> Doubles:
    """Divide; 0 where the divisor is 0."""
    return np.divide(dividend_T, divisor_T, out=np.zeros_like(dividend_T), where=divisor_T != 0)
