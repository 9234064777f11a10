"""The report of a sweep: the settings and scores of its runs, as one page that links to the report of each run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from markupsafe import Markup

from portico.report.charts import Frame, ticks
from portico.report.page import Section, duration, macros, panels, render_page, settings_panels

# An axis with at most this many values labels each of them, other axes only the ends.
_FEW = 5
# A score this close to that of a trivial answer is the same.
_SAME = 0.05
_STATES = ("finished", "pruned", "failed", "killed", "running")


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the parallel coordinates: the place of each value, 0 at the top and 100 at the bottom."""

    name: str
    title: str
    places: Mapping[Any, float]
    labels: Sequence[tuple[float, str]]
    is_goal: bool


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run as drawn: its number, what is said of it, CSS classes, rank from 0 to 1 for the best, and path."""

    number: int
    label: str
    css_class: str
    share: float
    path: str


def sweep_page(summary: Mapping[str, Any]) -> str:
    """Return the report of a sweep as one HTML page that needs no network and no other file.

    Args:
        summary: The contents of ``sweep.json``: ``name``; ``goals``, "max" or "min" by objective; ``parameters``;
            ``space``, the searched parameters, each with ``name``, ``kind``, ``range`` and ``log``; ``method``,
            settings of the search by name; ``fixed``, the overrides that all jobs share; ``best``, numbers of jobs;
            ``baselines``, scores of trivial answers by objective; ``importances``, shares
            of parameters by objective; ``without_importances``, why an objective has none; and ``jobs``, each with
            ``number``, ``status``, ``seconds``, ``error``, ``is_feasible``, ``folder``, ``report``, ``values``,
            ``objective``, ``evaluations`` and ``command``.
    """
    jobs = summary["jobs"]
    goals = summary["goals"]
    templates = macros("sweep.html.j2")
    best = [job for job in jobs if job["number"] in summary["best"]]
    shares = Markup().join(
        templates.importances(name, found) for name, found in summary["importances"].items() if found
    )
    return render_page(
        summary["name"],
        sweep_results(summary),
        templates.head(best, goals, duration(sum(job["seconds"] for job in jobs)), len(jobs)),
        [
            Section("What was searched", _search(summary), "Search"),
            Section("Objectives against each other", _tradeoffs(summary), "Objectives"),
            Section("Values and objective", _parallel(summary), "Values"),
            Section("Progress of the search", _progress(summary), "Progress"),
            Section("Importance of the values", panels(shares) + _importance_reasons(summary), "Importance"),
            Section("All runs", templates.table(summary, format_value, duration), "Runs"),
            Section("How to read this page", templates.methods(goals, bool(shares)), "Methods"),
        ],
        kicker="Report of a sweep",
    )


def sweep_results(summary: Mapping[str, Any]) -> str:
    """Return how many runs finished and which is the best, with ties and with trivial answers that do as well."""
    jobs, goals = summary["jobs"], summary["goals"]
    best = [job for job in jobs if job["number"] in summary["best"]]
    counts = {state: sum(job["status"] == state for job in jobs) for state in _STATES}
    listed = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    runs = "1 run" if len(jobs) == 1 else f"{len(jobs):,} runs"
    if len(goals) == 1 and best:
        (name,) = goals
        return f"{runs}: {listed}. {_describe_best(jobs, name, best[0], summary['baselines'].get(name, {}))}"
    return f"{runs}: {listed}." + (f" {len(best)} of them are not dominated by another." if best else "")


def _describe_best(
    jobs: Sequence[Mapping[str, Any]], name: str, best: Mapping[str, Any], baselines: Mapping[str, float]
) -> str:
    """Return what the best run reaches, which other runs reach the same, and whether trivial answers would do."""
    reached = best["objective"][name]
    tied = [job["number"] for job in jobs if job["status"] == "finished" and job["objective"].get(name) == reached]
    who = f"Run {tied[0]} reaches" if len(tied) == 1 else f"Runs {', '.join(map(str, tied))} all reach"
    sentence = f"{who} {name} {format_value(reached)}."
    way = max(baselines, key=lambda name: baselines[name], default=None)
    if way is not None:
        relation = "That is no better than" if reached < baselines[way] + _SAME else "That is better than"
        sentence += f" {relation} {way}, which gives {format_value(baselines[way])}."
    return sentence


def _search(summary: Mapping[str, Any]) -> Markup:
    """Return the searched parameters, the settings of the search and the settings that all runs share."""
    space: Markup = macros("sweep.html.j2").space(summary["space"])
    fixed = dict(override.partition("=")[::2] for override in summary["fixed"])
    return space + settings_panels({"Search": summary["method"], "The same in all runs": fixed})


# ---- Reasons for missing charts


def _explain_absence(what: str, reason: str) -> Markup:
    return Markup('<p class="absent">No {}: {}.</p>').format(what, reason)


def _explain_no_scores(summary: Mapping[str, Any]) -> str:
    """Return why no run has a score."""
    if not summary["goals"]:
        return "the sweep has no objective, which objective.metric sets"
    return "no run has a score" + (" yet" if any(job["status"] == "running" for job in summary["jobs"]) else "")


def _importance_reasons(summary: Mapping[str, Any]) -> Markup:
    if not summary["goals"]:
        return _explain_absence("importances", _explain_no_scores(summary))
    reasons = summary["without_importances"].items()
    return Markup().join(_explain_absence(f"importance for {name}", reason) for name, reason in reasons)


# ---- Parallel coordinates


def _parallel(summary: Mapping[str, Any]) -> Markup:
    jobs = [job for job in summary["jobs"] if _has_scores(job, summary["goals"])]
    if not jobs:
        return _explain_absence("chart", _explain_no_scores(summary))
    if not summary["parameters"]:
        return _explain_absence("chart", "no setting differs between the runs")
    axes = [_axis(name, [job["values"].get(name) for job in jobs]) for name in summary["parameters"]]
    axes += [_axis(name, [job["objective"][name] for job in jobs], is_goal=True) for name in summary["goals"]]
    paths = []
    for job in jobs:
        row = {**job["values"], **job["objective"]}
        points = [
            f"{100 * index / (len(axes) - 1):.2f} {axis.places[row.get(axis.name)]:.2f}"
            for index, axis in enumerate(axes)
        ]
        paths.append(f"M{'L'.join(points)}")
    return macros("sweep.html.j2").parallel(axes, _lines(summary, jobs, paths))


def _axis(name: str, values: Sequence[Any], *, is_goal: bool = False) -> Axis:
    found = sorted({value for value in values if _is_number(value)})
    others = sorted({str(value) for value in values if not _is_number(value)})
    title = name if is_goal else name.rpartition(".")[2]
    if others:  # names, or numbers and names, one below the other
        row = {
            value: 100 * (index + 0.5) / (len(found) + len(others)) for index, value in enumerate([*found, *others])
        }
        labels = [(place, format_value(value)) for value, place in row.items()]
        places = {value: row[value if _is_number(value) else str(value)] for value in values}
        return Axis(name, title, places, labels, is_goal)
    is_log = not is_goal and found[:1] > [0] and found[-1] > 10 * found[0]
    scale = math.log if is_log else float
    low, high = (scale(found[0]), scale(found[-1])) if found else (0.0, 0.0)
    extent = (high - low) or 1.0
    places = {value: 100 - 100 * (scale(value) - low) / extent if high > low else 50.0 for value in found}
    named = found if len(found) <= _FEW else [found[0], found[-1]]
    # Labels that would overlap are left out; the best and the worst stay.
    labels = []
    last = math.inf
    for value in named:
        is_free = last - places[value] >= 7 and places[value] - places[found[-1]] >= 7
        if is_free or value == found[-1]:
            labels.append((places[value], format_value(value)))
            last = places[value]
    return Axis(name, title, places, labels, is_goal)


# ---- Charts over the runs and over the steps


def _progress(summary: Mapping[str, Any]) -> Markup:
    charts = Markup().join(_objective_chart(summary, name) for name in summary["goals"])
    curves = _curves(summary)
    if not charts and not curves:
        return _explain_absence("chart", _explain_no_scores(summary))
    absent = Markup() if curves else _explain_absence("learning curves", "no run was evaluated during training")
    return panels(charts + curves) + absent


def _tradeoffs(summary: Mapping[str, Any]) -> Markup:
    """Return a chart of each pair of objectives; empty for one objective."""
    goals = summary["goals"]
    if len(goals) < 2:
        return Markup()
    charts = Markup().join(_tradeoff_chart(summary, *pair) for pair in combinations(goals, 2))
    return panels(charts) or _explain_absence("chart", "no run has a value of two objectives")


def _objective_chart(summary: Mapping[str, Any], name: str) -> Markup:
    jobs = [job for job in summary["jobs"] if _is_number(job["objective"].get(name))]
    if not jobs:
        return Markup()
    values = [job["objective"][name] for job in jobs]
    last = max(job["number"] for job in jobs)
    frame = Frame((-0.5, last + 0.5), ticks(min(values), max(values)))
    dots: list[str] = []
    steps: list[str] = []
    best = None
    better = max if summary["goals"][name] == "max" else min
    for job, value in zip(jobs, values, strict=True):
        x = frame.x(job["number"])
        dots.append(f"M{x:.2f} {frame.y(value):.2f}h0")
        if job["status"] == "finished" and job["is_feasible"]:
            best = value if best is None else better(best, value)
            steps.append(f"{'H' if steps else 'M'}{x:.2f}{' ' if not steps else 'V'}{frame.y(best):.2f}")
    return macros("sweep.html.j2").chart(
        f"{name} of each run",
        frame,
        _lines(summary, jobs, dots),
        kind="dots",
        x_name="run",
        x_labels=_whole_labels(frame, last),
        limit="".join(steps) + ("H100" if steps else ""),
        limit_name="best so far",
    )


def _tradeoff_chart(summary: Mapping[str, Any], y_name: str, x_name: str) -> Markup:
    """Return a chart of two objectives with a dot for each run, and the trade-off between them."""
    goals = {name: summary["goals"][name] for name in (x_name, y_name)}
    jobs = [job for job in summary["jobs"] if _has_scores(job, goals)]
    if not jobs:
        return Markup()
    xs, ys = ([job["objective"][name] for job in jobs] for name in goals)
    across = ticks(min(xs), max(xs))
    frame = Frame((across[0], across[-1]), ticks(min(ys), max(ys)))
    places = [(frame.x(x), frame.y(y)) for x, y in zip(xs, ys, strict=True)]
    kept = [
        place for place, job in zip(places, jobs, strict=True) if job["status"] == "finished" and job["is_feasible"]
    ]
    return macros("sweep.html.j2").chart(
        f"{y_name} against {x_name}",
        frame,
        _lines(summary, jobs, [f"M{x:.2f} {y:.2f}h0" for x, y in places]),
        kind="dots",
        x_name=x_name,
        x_labels=frame.x_labels,
        limit=_front(kept, is_rightward=goals[x_name] == "max", is_upward=goals[y_name] == "max"),
        limit_name="the best of both",
    )


def _front(places: Sequence[tuple[float, float]], *, is_rightward: bool, is_upward: bool) -> str:
    """Return the path along the dots that no other one dominates; the directions are where a dot is better."""
    x_sign, y_sign = (-1 if is_rightward else 1), (1 if is_upward else -1)  # y of the drawing points down
    steps: list[str] = []
    reached = math.inf
    for x, y in sorted(places, key=lambda place: (x_sign * place[0], y_sign * place[1])):
        if y_sign * y < reached:
            steps.append(f"{'H' if steps else 'M'}{x:.2f}{'V' if steps else ' '}{y:.2f}")
            reached = y_sign * y
    return "".join(steps) + ((f"H{0 if is_rightward else 100}") if steps else "")


def _curves(summary: Mapping[str, Any]) -> Markup:
    goals = summary["goals"]
    jobs = [job for job in summary["jobs"] if any(math.isfinite(value) for _, value in job["evaluations"])]
    if not jobs or not goals:
        return Markup()
    curves = [[(step, value) for step, value in job["evaluations"] if math.isfinite(value)] for job in jobs]
    values = [value for curve in curves for _, value in curve]
    frame = Frame((0.0, max(1.0, *(step for curve in curves for step, _ in curve))), ticks(min(values), max(values)))
    paths = []
    for curve in curves:
        points = [f"{frame.x(step):.2f} {frame.y(value):.2f}" for step, value in curve]
        paths.append(f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h0")
    return macros("sweep.html.j2").chart(
        f"{next(iter(goals))} during training",
        frame,
        _lines(summary, jobs, paths),
        kind="line",
        x_name="step",
        x_labels=frame.x_labels,
    )


def _whole_labels(frame: Frame, last: int) -> list[tuple[float, str]]:
    shown = [tick for tick in ticks(0, max(last, 1)) if tick == int(tick) and tick <= last]
    return [(frame.x(tick), f"{tick:,.0f}") for tick in shown]


# ---- Runs


def _has_scores(job: Mapping[str, Any], goals: Mapping[str, str]) -> bool:
    return bool(goals) and all(_is_number(job["objective"].get(name)) for name in goals)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shares(jobs: Sequence[Mapping[str, Any]], goals: Mapping[str, str]) -> list[float]:
    """Return the rank of each run by its first objective, 1 for the best and 0 for the worst or none."""
    name, mode = next(iter(goals.items()))
    values = [job["objective"].get(name) for job in jobs]
    known = sorted({value for value in values if _is_number(value)}, reverse=mode == "min")
    rank = {value: index / max(len(known) - 1, 1) for index, value in enumerate(known)}
    return [rank.get(value, 0.0) for value in values]


def _lines(summary: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> list[RunLine]:
    """Return the lines of runs, each along its path, in the order of drawing: the best on top."""
    shares = _shares(jobs, summary["goals"])
    lines = [_line(job, summary, share, path) for job, share, path in zip(jobs, shares, paths, strict=True)]
    return sorted(lines, key=lambda line: ("best" in line.css_class, line.share))


def _line(job: Mapping[str, Any], summary: Mapping[str, Any], share: float, path: str) -> RunLine:
    shown = [f"{name} {format_value(value)}" for name, value in job["objective"].items() if _is_number(value)]
    shown += [f"{name.rpartition('.')[2]} {format_value(value)}" for name, value in job["values"].items()]
    is_best = job["number"] in summary["best"]
    status = "" if job["status"] == "finished" else f" ({job['status']})"
    css_class = f"{job['status']}{' best' if is_best else ''}"
    return RunLine(job["number"], f"run {job['number']}{status}: {', '.join(shown)}", css_class, share, path)


def format_value(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
