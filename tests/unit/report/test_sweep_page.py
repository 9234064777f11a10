import re

import pytest

from portico.report.sweep_page import sweep_page
from sweep_results import job, summary


def test_page_needs_nothing_else_and_links_to_the_runs():
    page = sweep_page(summary())
    assert not re.search(r'(?:src|@import|url\()\s*=?\s*["\']?(?:https?:)?//', page)
    assert 'href="2/report.html"' in page
    assert 'href="3/"' in page, "a run without a report leads to its folder"
    assert "4 runs: 2 finished, 1 pruned, 1 failed. Run 2 reaches eval_f1 81.5." in page
    assert "Report of a sweep" in page


def test_each_run_is_one_line_through_all_axes():
    page = sweep_page(summary())
    (chart,) = re.findall(r'<div class="parallel".*?</svg>', page, re.S)
    paths = dict(re.findall(r'data-run="(\d+)".*?<path class="line" d="(M[^"]+)"', chart))
    # A failed run has no objective; the best learning rate is in the middle of a logarithmic axis.
    assert paths.keys() == {"0", "1", "2"}
    assert paths["2"] == "M0.00 50.00L50.00 75.00L100.00 0.00"
    assert 'class="run finished best" data-run="2"' in chart
    assert 'class="run pruned" data-run="1"' in chart


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
