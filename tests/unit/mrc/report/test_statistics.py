"""Intervals and tests against loops that do what their definitions say."""

import random
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.mrc.report.figures.intervals import NUM_RESAMPLES, mean_intervals
from portico.mrc.report.figures.significance import NUM_ROUNDS, mcnemar, randomisation


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
