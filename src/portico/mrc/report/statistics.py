"""Confidence intervals, significance tests, calibration, and the effect of the threshold for "no answer".

Shape suffixes: Q questions, S scores of a question, K distinct rows of scores, R resamples or rounds, T thresholds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portico.mrc.report.results import QuestionResult
from portico.report.page import Interval

NUM_RESAMPLES = 2000
NUM_ROUNDS = 10_000
NUM_BINS = 10
CONFIDENCE = 0.95
SEED = 0


def score_intervals(scores_QS: npt.NDArray[np.floating[Any]], *, best: float) -> list[Interval]:
    """Return an interval of each column's mean: Wilson's if all its scores are 0 or ``best``, else the bootstrap's.

    The bootstrap interval of equal scores has no width, however few they are.

    Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.
    """
    intervals = mean_intervals(scores_QS)
    num_questions = len(scores_QS)
    deviates = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2 / num_questions
    for column, scores_Q in enumerate(scores_QS.T):
        if np.isin(scores_Q, (0.0, best)).all():
            share = float(scores_Q.mean()) / best
            middle = share + deviates / 2
            width = math.sqrt(deviates * (share * (1 - share) + deviates / 4))
            ends = ((middle - width) / (1 + deviates), (middle + width) / (1 + deviates))
            # Rounding must not exclude the share itself.
            intervals[column] = Interval(best * min(ends[0], share), best * max(ends[1], share))
    return intervals


def mean_intervals(scores_QS: npt.NDArray[np.floating[Any]], *, seed: int = SEED) -> list[Interval]:
    """Return the percentile bootstrap interval of each column's mean.

    Questions count as independent: if many share a passage, the intervals are somewhat too narrow. If all questions of
    a group have the same score, its interval has no width.

    Args:
        scores_QS: Scores, ``[Q, S]``, of at least one question.
        seed: Seed of the ``NUM_RESAMPLES`` resamples; the same seed gives the same intervals.

    Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979; percentile method.
    """
    # Only how often each distinct row is drawn matters, and that is multinomial. So no index is ever drawn, and the
    # work grows with the number of distinct scores instead of questions.
    rows_KS, counts_K = np.unique(scores_QS, axis=0, return_counts=True)
    num_questions = len(scores_QS)
    draws_RK = np.random.default_rng(seed).multinomial(num_questions, counts_K / num_questions, size=NUM_RESAMPLES)
    means_RS = draws_RK @ rows_KS / num_questions
    outside = (1 - CONFIDENCE) / 2
    lows_S, highs_S = np.quantile(means_RS, [outside, 1 - outside], axis=0)
    return [Interval(float(low), float(high)) for low, high in zip(lows_S, highs_S, strict=True)]


def mcnemar(num_fixed: int, num_broken: int) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    If the runs were equally good, each question that only the second run gets right (``num_fixed``) or only the first
    one (``num_broken``) would be a fair coin flip.

    Source: McNemar, Psychometrika 12, 1947, with the binomial distribution in place of its approximation.
    """
    num_coins, fewer = num_fixed + num_broken, min(num_fixed, num_broken)
    ways = accumulate(range(1, fewer + 1), lambda term, heads: term * (num_coins - heads + 1) // heads, initial=1)
    # Integers up to here: the quotient is rounded once, whatever the number of questions.
    return min(1.0, 2 * sum(ways) / 2**num_coins)


def randomisation(differences_Q: npt.NDArray[np.floating[Any]], *, seed: int = SEED) -> float:
    """Return the two-sided p-value of an approximate randomisation test of a mean difference.

    ``differences_Q`` are the second scores minus the first. In each of ``NUM_ROUNDS`` rounds the two scores of every
    question are swapped with probability 1/2; the p-value is how often the means then differ at least as much.

    Source: Noreen, "Computer-Intensive Methods for Testing Hypotheses", 1989.
    """
    # How many of the equal differences keep their sign is binomial, so questions are not swapped one by one.
    sizes_K, counts_K = np.unique(np.abs(differences_Q), return_counts=True)
    kept_RK = np.random.default_rng(seed).binomial(counts_K, 0.5, size=(NUM_ROUNDS, len(counts_K)))
    sums_R = np.abs((2 * kept_RK - counts_K) @ sizes_K)
    # The tolerance is for sums of the same numbers in another order.
    num_as_large = int((sums_R >= abs(float(np.sum(differences_Q))) - 1e-9).sum())
    return (num_as_large + 1) / (NUM_ROUNDS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests: without any effect, one is below 0.05 in 1 case of 20.

    Source: Holm, "A Simple Sequentially Rejective Multiple Test Procedure", 1979.
    """
    ascending = sorted(range(len(p_values)), key=lambda index: p_values[index])
    raised = (p_values[index] * (len(p_values) - place) for place, index in enumerate(ascending))
    by_index = dict(zip(ascending, accumulate(raised, max), strict=True))
    return [min(1.0, by_index[index]) for index in range(len(p_values))]


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Questions whose confidence is in [low, high), or [low, 1]: their mean confidence, and their accuracy.

    Accuracy is the fraction answered exactly, with Wilson's interval. All but the count are in 0..1.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float
    interval: Interval


class Calibration(NamedTuple):
    """Confidence compared with accuracy, in bins that are not empty, the least confident first.

    The expected calibration error, in 0..1, is the mean difference of the two, weighted by the number of questions.
    """

    bins: list[ConfidenceBin]
    error: float


def calibration(results: Sequence[QuestionResult]) -> Calibration | None:
    """Return the calibration in bins of equal width, or None if no answer has a confidence.

    Source: Guo et al., "On Calibration of Modern Neural Networks", arXiv:1706.04599, section 2.
    """
    rows = [(result.probability, result.exact) for result in results if result.probability is not None]
    if not rows:
        return None
    confidence_Q, exact_Q = np.array(rows, dtype=np.float64).T
    # A file may hold any number as a probability.
    bin_Q = np.minimum((np.clip(confidence_Q, 0, 1) * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    bins = []
    for index in np.unique(bin_Q).tolist():
        confidences, exacts = confidence_Q[bin_Q == index], exact_Q[bin_Q == index]
        (interval,) = score_intervals(exacts[:, None], best=1.0)
        means = float(confidences.mean()), float(exacts.mean())
        bins.append(ConfidenceBin(index / NUM_BINS, (index + 1) / NUM_BINS, len(exacts), *means, interval))
    error = sum(bin_.count * abs(bin_.confidence - bin_.accuracy) for bin_ in bins) / len(rows)
    return Calibration(bins, error)


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdCurve:
    """Scores of the whole set, 0..100, over the threshold: a question is declined if its null odds exceed it.

    The thresholds ascend; the first declines every question, the last none. ``best`` is the index of the best F1, the
    lowest threshold among equals.
    """

    thresholds_T: npt.NDArray[np.float64]
    exact_T: npt.NDArray[np.float64]
    f1_T: npt.NDArray[np.float64]

    @property
    def best(self) -> int:
        return int(np.argmax(self.f1_T))


def threshold_curve(results: Sequence[QuestionResult]) -> ThresholdCurve | None:
    """Return the curve, or None if a question lacks null odds or candidates."""
    rows = [
        (result.null_odds, not result.golds, *result.if_answered)
        for result in results
        if result.null_odds is not None and result.if_answered is not None
    ]
    if not rows or len(rows) < len(results):
        return None
    odds_Q, declined_Q, *answered = np.array(rows, dtype=np.float64).T
    order_Q = np.argsort(odds_Q, kind="stable")
    gains_Q2 = (np.stack(answered, axis=1) - declined_Q[:, None])[order_Q]
    totals = declined_Q.sum() + np.concatenate([np.zeros((1, 2)), gains_Q2.cumsum(axis=0)])
    # No threshold separates equal odds: the row of the last question with a value counts for all of them.
    sorted_Q = odds_Q[order_Q]
    last_T = np.flatnonzero(np.append(sorted_Q[1:] != sorted_Q[:-1], True))
    thresholds_T = np.concatenate([[sorted_Q[0] - 1], sorted_Q[last_T]])
    scores_T2 = 100 * totals[np.concatenate([[0], last_T + 1])] / len(rows)
    return ThresholdCurve(thresholds_T, scores_T2[:, 0], scores_T2[:, 1])
