"""The report of one run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from portico.mrc.report.figures.calibration import calibration
from portico.mrc.report.figures.history import Point, curve
from portico.mrc.report.figures.null_threshold import ThresholdCurve, threshold_curve
from portico.mrc.report.figures.outcomes import Outcome, outcome, outcome_counts
from portico.mrc.report.figures.slices import Slicing, score, slicings
from portico.mrc.report.html.assets import filled
from portico.mrc.report.html.explorer import BYTES, MAX_MEGABYTES, explorer, group_link
from portico.mrc.report.html.explorer_data import ExplorerData
from portico.mrc.report.html.line_chart import Mark, Series, line_chart
from portico.mrc.report.html.markup import escaped
from portico.mrc.report.html.page import Section, page, panels, small_panels
from portico.mrc.report.html.reliability_chart import reliability_chart
from portico.mrc.report.html.settings import settings_tables
from portico.mrc.report.html.tables import SCORES, share_bar
from portico.mrc.report.html.tiles import lead, tiles, tiles_html
from portico.mrc.report.record import RunRecord
from portico.mrc.report.results import QuestionResult

# A longer curve would not look different.
_MAX_POINTS = 300
# The wrong ones first: they are the last to be left out.
_RANKING = sorted(Outcome, key=lambda kind: kind.is_right)


def run_page(record: RunRecord, *, max_megabytes: float = MAX_MEGABYTES) -> str:
    """Return the report of a run as one HTML page.

    Args:
        record: The run.
        max_megabytes: Room for the questions to read; the figures count all questions in any case.
    """
    results = record.results
    groupings = slicings(results)
    return page(
        record.title,
        lead(results),
        tiles_html(tiles(results, record.metrics, record.log_history)) + _missing(record.missing),
        [
            Section("Where it is strong and weak", _breakdown(results, groupings), "Breakdown"),
            Section("Whether its confidence can be trusted", _confidence(record), "Confidence"),
            Section("How it learned", _learning(record.log_history), "Learning"),
            *(Section(heading, html) for heading, html in record.sections.items()),
            Section("Questions to read", _questions(record, groupings, max_megabytes), "Questions"),
            Section("Settings", small_panels(settings_tables(record.settings))),
            Section("How to read the figures", filled("methods.html") if results else "", "Methods"),
        ],
    )


def _missing(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escaped(sentence)}</li>" for sentence in sentences)
    return f'<ul class="missing">{items}</ul>' if items else ""


def _breakdown(results: Sequence[QuestionResult], groupings: Sequence[Slicing]) -> str:
    if not results:
        return ""
    return share_bar(outcome_counts(results)) + panels(
        *(_group_table(number, slicing, results) for number, slicing in enumerate(groupings))
    )


def _group_table(number: int, slicing: Slicing, results: Sequence[QuestionResult]) -> str:
    members = slicing.members(results)
    groups = [score(name, [results[place] for place in places]) for name, places in members.items()]
    links = [group_link(number, name) for name in members]
    return SCORES.html(slicing.title, slicing.column, groups, links)


def _confidence(record: RunRecord) -> str:
    measured, thresholds = calibration(record.results), threshold_curve(record.results)
    sentences, charts = [], []
    if measured:
        charts.append(reliability_chart(measured))
        sentences.append(f"Expected calibration error: <b>{measured.error:.1%}</b>.")
    if thresholds:
        best = thresholds.best
        charts.append(_threshold_chart(thresholds, _used_threshold(record.settings)))
        sentences.append(
            f"The best threshold for these questions is <b>{thresholds.thresholds_T[best]:.3g}</b>, with an F1 of "
            f"<b>{thresholds.f1_T[best]:.1f}</b>; on other questions it may do worse, as it was chosen on these."
        )
    return f'<p class="finding">{" ".join(sentences)}</p>{panels(*charts)}' if charts else ""


def _used_threshold(settings: Mapping[str, Any]) -> float | None:
    used = (settings.get("postprocess") or {}).get("null_score_diff_threshold")
    return float(used) if isinstance(used, int | float) else None


def _threshold_chart(thresholds: ThresholdCurve, used: float | None) -> str:
    num_points = len(thresholds.thresholds_T)
    shown = np.unique(np.append(np.linspace(0, num_points - 1, _MAX_POINTS).astype(np.int64), thresholds.best))

    def points(scores_T: Any) -> tuple[Point, ...]:
        return tuple(zip(thresholds.thresholds_T[shown].tolist(), scores_T[shown].tolist(), strict=True))

    best = float(thresholds.thresholds_T[thresholds.best])
    marks = [Mark(f"best F1, at {best:.3g}", best)]
    if used is not None and thresholds.thresholds_T[0] <= used <= thresholds.thresholds_T[-1]:
        marks.append(Mark(f"used, {used:.3g}", used))
    return line_chart(
        "Another threshold for no answer",
        (Series("F1", "first", points(thresholds.f1_T)), Series("exact match", "second", points(thresholds.exact_T))),
        x_name="threshold",
        x_from_zero=False,
        marks=marks,
    )


def _learning(log_history: Sequence[Mapping[str, Any]]) -> str:
    losses = (
        Series("training", "first", curve(log_history, "loss")),
        Series("evaluation", "second", curve(log_history, "eval_loss"), dotted=True),
    )
    exact = curve(log_history, "eval_exact_match") or curve(log_history, "eval_exact")
    scores = (
        Series("F1", "first", curve(log_history, "eval_f1"), dotted=True),
        Series("exact match", "second", exact, dotted=True),
    )
    rate = (Series("learning rate", "first", curve(log_history, "learning_rate")),)
    return small_panels(
        line_chart("Loss", losses), line_chart("Scores in evaluation", scores), line_chart("Learning rate", rate)
    )


def _questions(record: RunRecord, groupings: Sequence[Slicing], max_megabytes: float) -> str:
    return explorer(
        ExplorerData(
            runs=[record.title],
            answered=[record.results],
            kinds=[outcome(result) for result in record.results],
            ranking=_RANKING,
            slicings=groupings,
            max_bytes=round(max_megabytes * BYTES),
        )
    )
