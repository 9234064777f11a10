"""Whether the model is right as often as it says.

Shape suffixes: Q questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from portico.mrc.report.figures.intervals import Interval, mean_intervals
from portico.mrc.report.results import QuestionResult

NUM_BINS = 10


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Questions of like confidence.

    Args:
        low: Lower end of the range of confidence, in 0..1, inclusive.
        high: Upper end, exclusive except for 1.
        count: How many questions are in it, at least 1.
        confidence: Their mean confidence.
        accuracy: The share of them that was answered exactly.
        interval: Bootstrap interval of the accuracy.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Calibration:
    """Confidence beside accuracy.

    Args:
        bins: Those that hold a question, the least confident first.
        error: Expected calibration error: the mean distance of confidence and accuracy over the bins, weighted by
            their questions, in 0..1.
    """

    bins: tuple[ConfidenceBin, ...]
    error: float


def calibration(results: Sequence[QuestionResult]) -> Calibration | None:
    """Return the calibration in bins of equal width, or None if no answer has a confidence.

    Source: Guo et al., "On Calibration of Modern Neural Networks", arXiv:1706.04599, section 2.
    """
    rows = [(result.probability, result.exact) for result in results if result.probability is not None]
    if not rows:
        return None
    confidence_Q, exact_Q = np.array(rows, dtype=np.float64).T
    bin_Q = np.minimum((confidence_Q * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    bins = []
    for index in np.unique(bin_Q).tolist():
        own_Q = bin_Q == index
        (interval,) = mean_intervals(exact_Q[own_Q, None])
        bins.append(
            ConfidenceBin(
                low=index / NUM_BINS,
                high=(index + 1) / NUM_BINS,
                count=int(own_Q.sum()),
                confidence=float(confidence_Q[own_Q].mean()),
                accuracy=float(exact_Q[own_Q].mean()),
                interval=interval,
            )
        )
    error = sum(one.count * abs(one.confidence - one.accuracy) for one in bins) / len(rows)
    return Calibration(tuple(bins), error)
