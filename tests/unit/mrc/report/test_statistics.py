"""Intervals, tests, calibration and thresholds against loops that do what their definitions say."""

import random
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.mrc.report import Scores
from portico.mrc.report.statistics import (
    NUM_RESAMPLES,
    NUM_ROUNDS,
    calibration,
    holm,
    mcnemar,
    mean_intervals,
    randomisation,
    score_intervals,
    threshold_curve,
)
from report_pages import result


def slow_interval(values, rng):
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(4000))
    return np.quantile(means, [0.025, 0.975])


@pytest.mark.parametrize(
    "values",
    [[0, 1] * 30, [0.0] * 50 + [100.0] * 10, [0, 50, 66.7, 80, 100] * 11],
    ids=["coins", "skewed", "F1"],
)
def test_intervals_are_those_of_drawing_questions_one_by_one(values):
    (interval,) = mean_intervals(np.array(values, dtype=float)[:, None])
    # Ends of two sets of resamples differ by chance, by a few percent of the interval's width.
    width = interval.high - interval.low
    assert np.allclose(interval, slow_interval(values, random.Random(1)), atol=0.12 * width)
    assert interval.low < np.mean(values) < interval.high


def test_columns_are_drawn_together_and_the_seed_decides():
    scores = np.random.default_rng(0).random((40, 1))
    first, second = mean_intervals(np.hstack([scores, 2 * scores]))
    assert second == pytest.approx((2 * first.low, 2 * first.high))
    assert mean_intervals(scores) == mean_intervals(scores)
    assert mean_intervals(scores) != mean_intervals(scores, seed=1)
    assert mean_intervals(scores) == mean_intervals(scores[::-1])


def test_equal_scores_have_an_interval_of_no_width():
    assert mean_intervals(np.full((7, 1), 100.0)) == [(100.0, 100.0)]
    assert NUM_RESAMPLES == 2000  # the page says so


@pytest.mark.parametrize(
    ("num_right", "num_questions", "expected"),
    # Brown, Cai and DasGupta, "Interval Estimation for a Binomial Proportion", 2001, equation 4, at 95%.
    [(60, 60, (93.98, 100.0)), (0, 60, (0.0, 6.02)), (1, 1, (20.65, 100.0)), (30, 60, (37.74, 62.26))],
)
def test_interval_of_a_share_has_a_width(num_right, num_questions, expected):
    scores = np.zeros((num_questions, 1))
    scores[:num_right] = 100.0
    (interval,) = score_intervals(scores, best=100.0)
    assert interval == pytest.approx(expected, abs=0.01)
    assert interval.low <= scores.mean() <= interval.high


def test_interval_of_other_scores_is_the_bootstrap():
    scores = np.array([[0.0], [50.0], [100.0]])
    assert score_intervals(scores, best=100.0) == mean_intervals(scores)


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_adds_up_all_outcomes_as_uneven(num_fixed, num_broken):
    total, seen = num_fixed + num_broken, abs(num_fixed - num_broken)
    ways = sum(comb(total, heads) for heads in range(total + 1) if abs(total - 2 * heads) >= seen)
    assert mcnemar(num_fixed, num_broken) == pytest.approx(ways / 2**total)


def test_mcnemar_of_very_many_questions():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert 0 < mcnemar(5200, 5000) == mcnemar(5000, 5200) < 0.06
    assert mcnemar(10_000, 0) == 0.0  # below the smallest number there is


@pytest.mark.parametrize(
    "differences", [[0.5, 0.5, 1, -0.25, 0], [1, 1, 1, 1, 1, 1, 1, -1], [0.1] * 9 + [-0.3, 0.7]], ids=str
)
def test_randomisation_is_the_share_of_all_swaps_that_differ_as_much(differences):
    seen = abs(sum(differences)) - 1e-9
    swaps = list(product((1, -1), repeat=len(differences)))
    share = sum(abs(np.dot(signs, differences)) >= seen for signs in swaps) / len(swaps)
    assert randomisation(np.array(differences, dtype=float)) == pytest.approx(share, abs=0.02)


def test_randomisation_of_equal_runs_and_of_opposite_ones():
    assert randomisation(np.zeros(20)) == 1.0
    assert randomisation(np.ones(200)) == 1 / (NUM_ROUNDS + 1)
    assert NUM_ROUNDS == 10_000  # the page says so


def test_calibration_error_is_the_weighted_distance_in_each_bin():
    rng = random.Random(0)
    rows = [(rng.random(), float(rng.random() < 0.6)) for _ in range(300)] + [(1.0, 1.0), (0.0, 0.0), (0.3, 1.0)]
    measured = calibration([result(probability=sure, exact=exact) for sure, exact in rows])
    error = 0.0
    for index in range(10):
        own = [row for row in rows if min(int(row[0] * 10), 9) == index]
        sure, right = (sum(column) / len(own) for column in zip(*own, strict=True))
        error += len(own) / len(rows) * abs(sure - right)
        one = measured.bins[index]
        assert (one.count, one.confidence, one.accuracy) == (len(own), pytest.approx(sure), pytest.approx(right))
        assert one.interval.low <= right <= one.interval.high
    assert measured.error == pytest.approx(error)


def test_bins_without_a_question_are_left_out():
    measured = calibration([result(probability=0.95), result(probability=0.99, exact=0.0)])
    (one,) = measured.bins
    assert (one.low, one.high, one.count, one.accuracy) == (0.9, 1.0, 2, 0.5)
    assert measured.error == pytest.approx(0.47)


def test_numbers_that_are_no_probability_are_in_the_outer_bins():
    first, last = calibration([result(probability=sure, exact=1.0) for sure in (-2.0, 0.05, 0.95, 1e308)]).bins
    assert (first.count, last.count) == (2, 2)


def test_answers_without_a_confidence_have_no_calibration():
    assert calibration([result(probability=None)]) is None
    assert calibration([]) is None


def scored(odds, answerable, exact, f1):
    return result(gold="Turku" if answerable else "", null_odds=odds, if_answered=Scores(exact, f1))


def test_the_curve_has_the_scores_of_each_threshold():
    rng = random.Random(3)
    questions = []
    for _ in range(60):
        f1 = rng.choice([0.0, 0.5, 1.0])
        answerable = rng.random() < 0.6
        questions.append((rng.randrange(-5, 6), answerable, float(f1 == 1) * answerable, f1 * answerable))
    curve = threshold_curve([scored(*question) for question in questions])
    assert list(curve.thresholds_T) == [-6, *range(-5, 6)]
    for threshold, exact, f1 in zip(curve.thresholds_T, curve.exact_T, curve.f1_T, strict=True):
        declines = [odds > threshold for odds, *_ in questions]
        for place, got in ((2, exact), (3, f1)):
            scores = [
                float(not question[1]) if declined else question[place]
                for question, declined in zip(questions, declines, strict=True)
            ]
            assert got == pytest.approx(100 * sum(scores) / len(scores))
    assert curve.f1_T[curve.best] == max(curve.f1_T)
    assert curve.best == min(place for place, f1 in enumerate(curve.f1_T) if f1 == max(curve.f1_T))


@pytest.mark.parametrize("lacks", [{"null_odds": None}, {"if_answered": None}])
def test_there_is_no_curve_if_a_question_lacks_its_scores(lacks):
    assert threshold_curve([result(), result(**lacks)]) is None
    assert threshold_curve([]) is None


def test_holm_raises_p_values_by_the_number_of_tests():
    # Worked by hand: 0.01 * 3, 0.03 * 2 and at least that for 0.04.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
