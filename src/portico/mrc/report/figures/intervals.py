"""Bootstrap confidence intervals of mean scores.

Shape suffixes: Q questions, S scores of a question, K distinct rows of scores, R resamples.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 0


class Interval(NamedTuple):
    """Both ends of a confidence interval, in the unit of the scores."""

    low: float
    high: float


def mean_intervals(scores_QS: npt.NDArray[np.floating[Any]], *, seed: int = SEED) -> list[Interval]:
    """Return the percentile bootstrap interval of each column's mean.

    As many questions as there are get drawn with replacement, `NUM_RESAMPLES` times, and the middle `CONFIDENCE` of
    the means is kept. Questions count as independent: where many share a passage, the intervals are somewhat too
    narrow. A group in which all questions score alike has an interval of no width.

    Args:
        scores_QS: Scores, ``[Q, S]``, of at least one question.
        seed: Seed of the draws; the same seed gives the same intervals.

    Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979; percentile method.
    """
    # Only how often each distinct row is drawn matters, and that is multinomial: no index is ever drawn, so the work
    # grows with the number of distinct scores and not with that of the questions.
    rows_KS, counts_K = np.unique(scores_QS, axis=0, return_counts=True)
    num_questions = len(scores_QS)
    draws_RK = np.random.default_rng(seed).multinomial(num_questions, counts_K / num_questions, size=NUM_RESAMPLES)
    means_RS = draws_RK @ rows_KS / num_questions
    outside = (1 - CONFIDENCE) / 2
    lows_S, highs_S = np.quantile(means_RS, [outside, 1 - outside], axis=0)
    return [Interval(float(low), float(high)) for low, high in zip(lows_S, highs_S, strict=True)]
