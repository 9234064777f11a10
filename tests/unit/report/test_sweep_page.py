import re

import pytest

from portico.report.sweep_page import _front, sweep_page
from report_pages import Page, job, summary


def test_page_needs_nothing_else_and_links_to_the_runs():
    page = sweep_page(summary())
    assert not re.search(r'(?:src|@import|url\()\s*=?\s*["\']?(?:https?:)?//', page)
    assert 'href="2/report.html"' in page
    assert 'href="3/"' in page, "a run without a report leads to its folder"
    assert "4 runs: 2 finished, 1 pruned, 1 failed. Run 2 reaches eval_f1 81.5." in page
    assert "Report of a sweep" in page


def test_what_was_searched_and_how_stands_on_the_page():
    page = Page(sweep_page(summary()))
    shown = "|".join(text.strip() for text in page.text if text.strip())
    assert "args.learning_|rate|float|0.0001 to 0.01|log|model|choice|a, b|" in shown
    assert "sampler|TPESampler(seed=1)|pruner|none|trials|4|" in shown
    assert "The same in all runs|+experiment|mrc|args.seed|3|" in shown
    assert "Train run 2 again|portico train +experiment=mrc args.learning_rate=1e-2|" in shown
    heads = [text for text in page.text if text in ("run", "state", "time")]
    assert heads[-3:] == ["run", "state", "time"], "on a phone, the first columns are seen"


ONE = {"jobs": [job(0, 5.0, evaluations=[])], "best": [0], "importances": {}}


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"jobs": [job(0, None, status="running")]}, ["No chart: no run has a score yet."]),
        ({"jobs": [job(0, None, status="failed")]}, ["No chart: no run has a score."]),
        ({"goals": {}}, ["No importances: the sweep has no objective, which objective.metric sets."]),
        ({"parameters": []}, ["No chart: no setting differs between the runs."]),
        (ONE, ["No learning curves: no run was evaluated during training."]),
        ({"without_importances": {"eval_f1": "too few"}}, ["No importance for eval_f1: too few."]),
        ({"goals": {"a": "max", "b": "min"}, "best": []}, ["No chart: no run has a value of two objectives."]),
    ],
)
def test_a_missing_chart_has_a_reason(changes, reasons):
    if "jobs" in changes:
        changes = {"best": [], **changes}
    page = sweep_page(summary(**{"importances": {}, **changes}))
    found = re.findall('<p class="absent">(.*?)</p>', page)
    assert all(reason in found for reason in reasons)
    assert bool(found) == bool(reasons)


def test_objective_may_have_dots_in_its_name():
    name = "eval_xquad.es_f1"
    one = job(0, 5.0, objective={name: 5.0})
    assert f"Run 0 reaches {name} 5." in sweep_page(summary(goals={name: "max"}, jobs=[one], best=[0], importances={}))


@pytest.mark.parametrize(
    ("scores", "baselines", "expected"),
    [
        ([28.4, 28.4, 20.0], {}, "Runs 0, 1 all reach eval_f1 28.4."),
        (
            [28.4, 28.4],
            {"answering nothing": 28.4, "always answering": 3.0},
            "Runs 0, 1 all reach eval_f1 28.4. That is no better than answering nothing, which gives 28.4.",
        ),
        (
            [60.0, 28.4],
            {"answering nothing": 28.4},
            "Run 0 reaches eval_f1 60. That is better than answering nothing, which gives 28.4.<",
        ),
    ],
)
def test_ties_and_trivial_answers_are_said(scores, baselines, expected):
    jobs = [job(number, score) for number, score in enumerate(scores)]
    page = sweep_page(summary(jobs=jobs, best=[0], baselines={"eval_f1": baselines}))
    assert expected in page


def test_each_run_is_one_line_through_all_axes():
    page = sweep_page(summary())
    (chart,) = re.findall(r'<div class="parallel".*?</svg>', page, re.S)
    paths = dict(re.findall(r'data-run="(\d+)".*?<path class="line" d="(M[^"]+)"', chart))
    # A failed run has no objective; the best learning rate is in the middle of a logarithmic axis.
    assert paths.keys() == {"0", "1", "2"}
    assert paths["2"] == "M0.00 50.00L50.00 75.00L100.00 0.00"
    assert 'class="run finished best" data-run="2"' in chart
    assert 'class="run pruned" data-run="1"' in chart


def test_labels_of_an_axis_do_not_cover_each_other():
    page = sweep_page(summary(jobs=[job(number, score) for number, score in enumerate((53.5, 77.5, 96.0, 97.0))]))
    (chart,) = re.findall(r'<div class="parallel".*?</div></div></div>', page, re.S)
    labels = re.findall(r'class="value last" style="left:100.00%;top:([\d.]+)%">([\d.]+)<', chart)
    assert labels == [("100.00", "53.5"), ("44.83", "77.5"), ("0.00", "97")]


def test_best_so_far_ignores_pruned_and_infeasible_runs():
    jobs = [job(0, 70.0), job(1, 90.0, status="pruned"), job(2, 95.0, is_feasible=False), job(3, 80.0)]
    page = sweep_page(summary(jobs=jobs, best=[3]))
    (path,) = re.findall(r'<path class="ideal" d="(M[^"]+)"', page)
    assert path.count("V") == 1


def test_text_of_a_run_is_no_markup():
    hostile = "<script>alert(1)</script>"
    page = sweep_page(summary(name=hostile, jobs=[job(0, 1.0, values={hostile: hostile}, error=hostile)]))
    assert hostile not in page


@pytest.mark.parametrize(
    "changes",
    [
        {"jobs": [job(0, None, status="running")], "best": []},
        {"jobs": [job(0, None)], "goals": {}, "best": [], "importances": {}},
        {"jobs": [job(0, 5.0), job(1, 5.0)]},
        {"jobs": [job(0, 5.0, values={}), job(1, 6.0, values={"a": "x"})], "parameters": ["a"], "best": [1]},
        {"jobs": [job(0, 5.0, evaluations=[[0, float("nan")], [10, 1.0]])]},
    ],
    ids=["running", "no objective", "equal", "missing value", "diverged"],
)
def test_sweeps_that_say_little_have_a_page(changes):
    assert "All runs" in sweep_page(summary(**changes))


TWO = {"eval_f1": "max", "train_runtime": "min"}


def of_two(number, score, seconds, **changes):
    return job(number, score, objective={"eval_f1": score, "train_runtime": seconds}, **changes)


def test_two_objectives_are_drawn_against_each_other():
    jobs = [
        *(of_two(0, 60.0, 10.0), of_two(1, 80.0, 40.0), of_two(2, 70.0, 20.0), of_two(3, 65.0, 30.0)),
        *(of_two(4, 90.0, 5.0, is_feasible=False), of_two(5, None, 50.0, status="failed")),
    ]
    page = sweep_page(summary(jobs=jobs, goals=TWO, best=[0, 1, 2], importances={}))
    (chart,) = re.findall(r"eval_f1 against train_runtime</h3>.*?</figure>", page, re.S)
    dots = {int(run): (x, y) for run, x, y in re.findall(r'data-run="(\d)".*?d="M([\d.]+) ([\d.]+)h0', chart)}
    assert dots.keys() == {0, 1, 2, 3, 4}, "a run without a value has no dot"
    # Along what no other feasible run dominates, from the fastest to the best, and on to the slow side.
    steps = f"M{' '.join(dots[0])}H{dots[2][0]}V{dots[2][1]}H{dots[1][0]}V{dots[1][1]}H100"
    assert f'<path class="ideal" d="{steps}"' in chart
    assert "the best of both" in chart


@pytest.mark.parametrize(
    ("is_rightward", "is_upward", "expected"),
    [
        (False, True, "M10.00 50.00H30.00V20.00H100"),
        (True, True, "M30.00 20.00H0"),
        (True, False, "M30.00 20.00H20.00V60.00H0"),
        (False, False, "M10.00 50.00H20.00V60.00H100"),
    ],
)
def test_the_front_follows_the_directions_of_both(is_rightward, is_upward, expected):
    places = [(10.0, 50.0), (20.0, 60.0), (30.0, 20.0)]
    assert _front(places, is_rightward=is_rightward, is_upward=is_upward) == expected


def test_each_pair_of_objectives_has_a_chart():
    goals = {"a": "max", "b": "min", "c": "max"}
    jobs = [
        job(number, 1.0, objective={name: number + index for index, name in enumerate(goals)}) for number in (0, 1)
    ]
    page = sweep_page(summary(jobs=jobs, goals=goals, best=[], importances={}))
    assert [f"{y} against {x}" in page for y, x in ("ab", "ac", "bc")] == [True] * 3
    assert "against" not in sweep_page(summary()).split("How to read")[0]
