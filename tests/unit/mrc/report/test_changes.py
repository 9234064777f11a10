import pytest

from portico.mrc.report.figures.changes import Change, change, change_counts, difference, significance
from portico.mrc.report.figures.significance import mcnemar
from reading_results import result

RIGHT, CLOSE, WRONG = result(), result(predicted="in Turku", f1=0.67), result(predicted="1901")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (WRONG, RIGHT, Change.FIXED),
        (RIGHT, CLOSE, Change.BROKEN),
        (WRONG, CLOSE, Change.BETTER),
        (CLOSE, WRONG, Change.WORSE),
        (WRONG, result(predicted="Łuk"), Change.OTHER_ANSWER),
        (WRONG, WRONG, Change.UNCHANGED),
        (RIGHT, RIGHT, Change.UNCHANGED),
    ],
)
def test_change(first, second, expected):
    assert change(first, second) is expected


def test_counts_come_in_the_order_of_the_classes():
    assert list(change_counts([RIGHT, WRONG, WRONG], [WRONG, RIGHT, WRONG]).items()) == [
        (Change.FIXED, 1),
        (Change.BROKEN, 1),
        (Change.UNCHANGED, 1),
    ]


def test_difference():
    first, second = [RIGHT, CLOSE, WRONG, WRONG], [WRONG, RIGHT, RIGHT, WRONG]
    found = difference("a", first, second)
    assert (found.name, found.count, found.num_fixed, found.num_broken) == ("a", 4, 2, 1)
    assert (found.first_exact, found.second_exact) == (25.0, 50.0)
    assert (found.first_f1, found.second_f1) == (pytest.approx(41.75), 50.0)
    assert found.f1_interval.low < found.second_f1 - found.first_f1 < found.f1_interval.high


def test_equal_runs_do_not_differ():
    found = difference("", [RIGHT, WRONG], [RIGHT, WRONG])
    assert found.f1_interval == found.exact_interval == (0.0, 0.0)
    assert significance([RIGHT, WRONG], [RIGHT, WRONG]) == (1.0, 1.0)


def test_significance_counts_what_was_fixed_and_what_broke():
    tested = significance([WRONG] * 12 + [RIGHT] * 3, [RIGHT] * 12 + [WRONG] * 3)
    assert tested.exact == mcnemar(12, 3)
    assert tested.f1 == pytest.approx(tested.exact, abs=0.01)
