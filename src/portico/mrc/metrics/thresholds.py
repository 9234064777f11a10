"""What answering only where "no answer" is improbable would score, as in SQuAD 2.0.

Shape suffixes: E questions, T thresholds.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


class Curve(NamedTuple):
    """Precision and recall at each threshold that can be put between two questions.

    Attributes:
        precision_T: In 0..1; the first is 1, of answering no question.
        recall_T: In 0..1; the first is 0.
        threshold_T: Highest probability of "no answer" at which a question is answered; the first is minus infinity.
    """

    precision_T: Doubles
    recall_T: Doubles
    threshold_T: Doubles

    @property
    def average_precision(self) -> float:
        """Area below the curve, in 0..1."""
        return float(_running_sums(self.precision_T[1:] * np.diff(self.recall_T))[-1])


def best_threshold(null_probability_E: Doubles, gain_E: Doubles, num_unanswerable: int) -> tuple[float, float]:
    """Return the best sum of scores from answering only the first few questions, and the last one's probability.

    Answering none of them gets every question without an answer right; its threshold is 0.

    Args:
        null_probability_E: Probability of "no answer".
        gain_E: What answering the question adds to the sum of scores.
        num_unanswerable: Questions without an answer.
    """
    order_E = null_probability_E.argsort(kind="stable")
    score_E = _running_sums(np.append(float(num_unanswerable), gain_E[order_E]))
    best = int(score_E.argmax())
    return float(score_E[best]), float(null_probability_E[order_E[best - 1]]) if best > 0 else 0.0


def precision_recall_curve(null_probability_E: Doubles, score_E: Doubles, num_answerable: int) -> Curve:
    """Return precision and recall of answering all questions up to each probability of "no answer".

    Args:
        null_probability_E: Probability of "no answer"; one question at least.
        score_E: What the answer is worth, in 0..1; 0 where there is none.
        num_answerable: Questions with an answer, at least one.
    """
    order_E = null_probability_E.argsort(kind="stable")
    sorted_E = null_probability_E[order_E]
    worth_E = _running_sums(score_E[order_E])
    # Questions of equal probability are answered together or not at all.
    last_T = np.flatnonzero(np.append(sorted_E[1:] != sorted_E[:-1], True))
    return Curve(
        np.append(1.0, worth_E[last_T] / (last_T + 1)),
        np.append(0.0, worth_E[last_T] / num_answerable),
        np.append(-np.inf, sorted_E[last_T]),
    )


def _running_sums(terms: Doubles) -> Doubles:
    """Return the sums of the first terms, added one by one as official scripts do."""
    sums: Doubles = np.add.accumulate(terms)
    return sums
