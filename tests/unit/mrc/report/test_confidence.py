"""Calibration and thresholds against loops that do what their definitions say."""

import random

import pytest

from portico.mrc.report import Scores
from portico.mrc.report.figures.calibration import calibration
from portico.mrc.report.figures.null_threshold import threshold_curve
from reading_results import result


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


def test_answers_without_a_confidence_have_no_calibration():
    assert calibration([result(probability=None)]) is None
    assert calibration([]) is None


def scored(odds, answerable, exact, f1):
    return result(gold="Turku" if answerable else "", null_odds=odds, if_answered=Scores(exact, f1))


def test_a_curve_is_what_each_threshold_would_give():
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
def test_a_question_that_cannot_be_moved_leaves_no_curve(lacks):
    assert threshold_curve([result(), result(**lacks)]) is None
    assert threshold_curve([]) is None
