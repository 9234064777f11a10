import html
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.report.charts import Series, line_chart, tick_labels, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 2400, [0, 500, 1000, 1500, 2000, 2500]),
        (0, 5, [0, 1, 2, 3, 4, 5]),
        (3, 3, [1.0, 2.0, 3.0, 4.0, 5.0]),
        (1e9, 1e9 + 1e-7, [0.5e9, 0.75e9, 1e9, 1.25e9, 1.5e9]),
        (0, 0, [-0.6, -0.4, -0.2, 0, 0.2, 0.4, 0.6]),
    ],
)
def test_ticks(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
def test_ticks_cover_the_range_and_stay_few(low, width):
    found = ticks(low, low + width)
    assert 2 <= len(found) <= 10
    slack = 1e-6 * max(abs(low), width)
    assert found[0] <= low + slack
    assert found[-1] >= low + width - slack
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0.5, 1], ["0", "0.5", "1"]),
        ([0, 1500, 3000], ["0", "1,500", "3,000"]),
        ([0, 5e-5, 1e-4], ["0", "0.5e-4", "1e-4"]),
        ([-2e6, 0, 1e6], ["-2e6", "0", "1e6"]),
    ],
)
def test_tick_labels(values, expected):
    assert tick_labels(values) == expected


def drawn(path_class, chart):
    return re.search(rf'class="{path_class}" d="([^"]*)"', chart)[1]


def test_points_are_placed_from_step_zero_and_the_lowest_tick():
    chart = line_chart("Loss", [Series("training", "first", ((25.0, 4.0), (100.0, 1.0)))])
    assert drawn("line first", chart) == "M25.00 0.00L100.00 75.00"


def test_dots_are_drawn_for_dotted_series_and_for_single_points():
    points = ((5.0, 1.0), (10.0, 3.0))
    assert 'class="dots' not in line_chart("", [Series("a", "first", points)])
    assert drawn("dots first", line_chart("", [Series("a", "first", points, dotted=True)])).count("h0") == 2
    assert drawn("dots first", line_chart("", [Series("a", "first", points[:1])])).count("h0") == 1


def test_a_chart_carries_its_numbers_and_a_summary():
    chart = line_chart("Loss", [Series("a<b", "first", ((1.0, 2.5), (4.0, 0.12345))), Series("unseen", "second", ())])
    data = json.loads(html.unescape(re.search('data-series="([^"]*)"', chart)[1]))
    assert data == [{"label": "a<b", "points": [[1.0, 2.5], [4.0, 0.1235]]}]
    assert 'aria-label="Loss: a&lt;b from 2.5 at step 1 to 0.1235 at step 4"' in chart
    assert "unseen" not in chart


@pytest.mark.parametrize("points", [((0.0, 0.0),), ((7.0, -3.0), (7.0, -3.0)), ((1.0, 1e-9), (2.0, 1e12))])
def test_degenerate_curves_are_drawn_inside_the_plot(points):
    chart = line_chart("", [Series("a", "first", points)])
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", drawn("line first", chart))]
    assert all(0 <= number <= 100 for number in numbers)


def test_no_points_give_no_chart():
    assert line_chart("Loss", [Series("training", "first", ())]) == ""
