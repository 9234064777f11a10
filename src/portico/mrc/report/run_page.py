"""The report of one run, as a page and as files in the run's folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from portico.mrc.report.explorer import BYTES, MAX_MEGABYTES, Explorer, group_link, kind_link
from portico.mrc.report.figures import Grouping, Kind, Outcome, count_kinds, groupings, outcome, score
from portico.mrc.report.results import ANSWERING, DECLINING, QuestionResult, RunRecord
from portico.mrc.report.statistics import Calibration, ThresholdCurve, calibration, threshold_curve
from portico.report.charts import Frame, Mark, Series, curve, draw_training_charts, line_chart
from portico.report.page import (
    REPORT_PAGE,
    Section,
    Tile,
    duration,
    harmless_markup,
    html_table,
    macros,
    panels,
    render,
    render_page,
    scores_of,
    settings_panels,
)
from portico.trust.disk import write_text

REPORT_RECORD = "report.json"

# Space at each side of a bar, in percent of the width.
_GAP = 0.6
# More points would not change how a curve looks.
_MAX_POINTS = 300
# A score this close to the mean of the questions' scores, in percent, is that mean, so its interval is known.
_SAME = 0.05
# A longer passage would not be read before a question is asked about it.
_MOST_CHARACTERS = 4000
# The wrong ones first: they are the last to be left out.
_RANKING = sorted(Outcome, key=lambda kind: kind.is_right)


def record_run(folder: str | Path, record: RunRecord) -> Path:
    """Write the page of a run into its folder, and data that no other file holds into ``report.json``.

    Returns the path of the page.
    """
    page = Path(folder, REPORT_PAGE)
    write_report(page, record)
    saved = {
        "title": record.title,
        "settings": record.settings,
        "sections": record.sections,
        "baselines": record.baselines,
        "headline": record.headline,
        "spans": {result.id: result.predicted_span for result in record.results},
        "example": example_questions(record.results) | {"score": lead(record.results)},
    }
    write_text(Path(folder, REPORT_RECORD), json.dumps(saved, ensure_ascii=False, default=str))
    return page


def example_questions(results: Sequence[QuestionResult]) -> dict[str, Any]:
    """Return a passage with questions that the run answers correctly, for ``portico demo``; ``{}`` without any.

    Up to three ``questions`` have an answer, each a different one; ``declined`` has a question without an answer, if
    the run correctly declines one.
    """
    by_context: dict[str, dict[str, str]] = {}
    for result in results:
        if result.exact == 1 and len(result.context) <= _MOST_CHARACTERS:
            gold = result.golds[0][0] if result.golds else ""
            by_context.setdefault(result.context, {}).setdefault(gold, result.question)
    if not by_context:
        return {}

    def worth(entry: tuple[str, dict[str, str]]) -> tuple[bool, int]:
        num_answered = len(entry[1].keys() - {""})
        return num_answered < len(entry[1]) and num_answered > 0, min(num_answered, 3)

    context, asked = max(by_context.items(), key=worth)
    declined = [asked.pop("")] if "" in asked else []
    return {"context": context, "questions": list(asked.values())[:3], "declined": declined}


def write_report(path: str | Path, record: RunRecord, *, max_megabytes: float = MAX_MEGABYTES) -> None:
    """Write the report of a run: one HTML file that needs no network and no other file.

    Args:
        path: The file to write, UTF-8; its folder must exist.
        record: The run.
        max_megabytes: Limit for the size of the questions to read; those left out are counted on the page.
    """
    write_text(path, run_page(record, max_megabytes=max_megabytes))


def run_page(record: RunRecord, *, max_megabytes: float = MAX_MEGABYTES) -> str:
    """Return the report of a run as one HTML page; for the arguments see ``write_report``."""
    results = record.results
    ways = groupings(results)
    headline = tiles(results, record.metrics, record.log_history, baselines(record), first=record.headline)
    parts = macros("parts.html.j2")
    breakdown = Markup()
    if results:
        breakdown = kinds_bar(list(map(outcome, results)), _RANKING)
        breakdown += group_tables(parts.score_table, score, ways, results)
    explorer = Explorer(
        runs=[record.title],
        answered=[results],
        kinds=list(map(outcome, results)),
        ranking=_RANKING,
        groupings=ways,
        max_bytes=round(max_megabytes * BYTES),
    )
    return render_page(
        record.title,
        lead(results),
        parts.remark(remark(headline))
        + parts.tiles(build_headline_tile(record))
        + parts.tiles(headline)
        + parts.missing(record.missing),
        [
            Section("Scores by group", breakdown, "Breakdown"),
            Section("Confidence and calibration", _confidence(record), "Confidence"),
            Section("Training history", _draw_learning_curves(record), "Learning"),
            *(Section(heading, harmless_markup(str(content))) for heading, content in record.sections.items()),
            Section("Individual questions", explorer.html(), "Questions"),
            Section("All scores", _all_scores(record), "Scores"),
            Section("Settings", settings_panels(record.settings)),
            Section("How to read these figures", render("methods.html.j2") if results else Markup(), "Methods"),
        ],
    )


def _all_scores(record: RunRecord) -> Markup:
    rows = label_scores(record.metrics, f"eval_{record.headline}")
    return html_table(["score", "value", "name"], rows) if rows else Markup()


class _Row(NamedTuple):
    label: str
    form: str = "{:.1f}"
    factor: float = 1.0


# How scores of our metrics are shown: in 0..100, and by a longer name.
_ROWS = {
    "f1": _Row("F1"),
    "exact": _Row("Exact match"),
    "exact_match": _Row("Exact match"),
    "HasAns_exact": _Row("Exact match where there is an answer"),
    "HasAns_f1": _Row("F1 where there is an answer"),
    "HasAns_total": _Row("Questions with an answer", "{:,.0f}"),
    "NoAns_exact": _Row("Accuracy where there is none"),
    "NoAns_f1": _Row("F1 where there is none"),
    "NoAns_total": _Row("Questions without an answer", "{:,.0f}"),
    "best_exact": _Row("Exact match at the best threshold"),
    "best_f1": _Row("F1 at the best threshold"),
    "best_exact_thresh": _Row("Threshold of the best exact match", "{:.3g}"),
    "best_f1_thresh": _Row("Threshold of the best F1", "{:.3g}"),
    "pr_exact_ap": _Row("Average precision of exact match"),
    "pr_f1_ap": _Row("Average precision of F1"),
    "pr_oracle_ap": _Row("Average precision of an oracle"),
    "avg_passage_f1": _Row("Passage F1, mean of languages", factor=100.0),
    "avg_minimal_f1": _Row("Minimal answer F1, mean of languages", factor=100.0),
    "long_answer_best_f1": _Row("Long answer F1 at the best threshold", factor=100.0),
    "short_answer_best_f1": _Row("Short answer F1 at the best threshold", factor=100.0),
    "rouge1": _Row("ROUGE-1"),
    "rouge2": _Row("ROUGE-2"),
    "rougeL": _Row("ROUGE-L"),
    "rougeLsum": _Row("ROUGE-L of sentences"),
    "kilt_rougeL": _Row("ROUGE-L as KILT counts"),
    **dict.fromkeys(("total", "num_questions", "long_answer_n"), _Row("Questions", "{:,.0f}")),
    "loss": _Row("Loss", "{:.3f}"),
}


def label_scores(metrics: Mapping[str, float], *first: str) -> list[tuple[str, str, str]]:
    """Return every score of an evaluation (``eval_...``), the ``first`` ones on top: label, value and name."""
    rows: dict[str, tuple[str, str, str]] = {}
    for name, value in scores_of(metrics, *first).items():
        row = _ROWS.get(name, _Row(name, "{:.4g}"))
        label = name if row.label in rows else row.label
        rows[label] = (label, row.form.format(row.factor * value), name)
    return list(rows.values())


def lead(results: Sequence[QuestionResult]) -> str:
    if not results:
        return "No question was evaluated."
    num_right = sum(outcome(result).is_right for result in results)
    num_unanswerable = sum(not result.golds for result in results)
    of_which = f", {num_unanswerable:,} of them without an answer" if num_unanswerable else ""
    return f"{num_questions(len(results))}{of_which}: {num_right:,} correct, {len(results) - num_right:,} incorrect."


def num_questions(count: int) -> str:
    return "1 question" if count == 1 else f"{count:,} questions"


def baselines(record: RunRecord) -> Mapping[str, Mapping[str, float]]:
    """Return the scores of trivial answers, recorded or by SQuAD's rules; none if every question has an answer."""
    if all(result.golds for result in record.results) or record.baselines is not None:
        return record.baselines or {}
    ends = threshold_curve(record.results)
    if ends is None:
        return {}
    # The lowest threshold declines every question, the highest none.
    rows = {DECLINING: 0, ANSWERING: -1}
    return {way: {"f1": float(ends.f1_T[row]), "exact": float(ends.exact_T[row])} for way, row in rows.items()}


def baselines_of(trivial: Mapping[str, Mapping[str, float]], *names: str) -> dict[str, float]:
    """Return one score of each baseline, under the first of the names that it has."""
    return {way: reached[key] for way, reached in trivial.items() for key in names if key in reached}


def remark(headline: Sequence[Tile]) -> str:
    """Return a sentence about the first score that does not exceed its best baseline; ``""`` if all scores do."""
    for tile in headline:
        way = max(tile.baselines, key=lambda name: tile.baselines[name], default=None)
        if way is not None and tile.percent is not None and tile.percent < tile.baselines[way] + _SAME:
            return f"{tile.label} {tile.value} is no better than {way}, which gives {tile.baselines[way]:.1f}."
    return ""


def build_headline_tile(record: RunRecord) -> list[Tile]:
    """Return the tile of a headline score that :func:`tiles` does not show, such as a metric of the user's."""
    value = _metric(record.metrics, record.headline) if record.headline else None
    if value is None or record.headline in ("f1", "exact", "exact_match"):
        return []
    return [Tile(record.headline, f"{value:.4g}")]


def tiles(
    results: Sequence[QuestionResult],
    metrics: Mapping[str, float],
    log_history: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, Mapping[str, float]],
    *,
    first: str = "",
) -> list[Tile]:
    """Return the tiles of the headline, the score ``first`` before the others.

    Scores come from ``metrics`` (with any prefix) or else from ``results``.

    A score that is not the mean over the questions, for example by the rules of another dataset, has no interval.
    """
    answerable = [result for result in results if result.golds]
    unanswerable = [result for result in results if not result.golds]
    # Label, questions, score, and names of the metric: SQuAD 1.1's, then SQuAD 2.0's.
    wanted: list[tuple[str, Sequence[QuestionResult], str, tuple[str, ...]]] = [
        ("F1", results, "f1", ("f1",)),
        ("Exact match", results, "exact", ("exact_match", "exact")),
    ]
    if answerable and unanswerable:
        wanted += [
            ("F1, has answer", answerable, "f1", ("HasAns_f1",)),
            ("Accuracy, no answer", unanswerable, "exact", ("NoAns_exact",)),
        ]
    wanted.sort(key=lambda row: first not in row[3])
    scores = []
    for label, scored, name, names in wanted:
        group = score(label, scored) if scored else None
        percent = _metric(metrics, *names)
        mean = getattr(group, name, None)
        percent = mean if percent is None else percent
        if percent is not None:
            is_mean = mean is not None and abs(percent - mean) < _SAME
            interval = getattr(group, f"{name}_interval") if is_mean else None
            trivial = baselines if scored is results else {}
            scores.append(Tile(label, f"{percent:.1f}", percent, interval, baselines_of(trivial, *names)))
    loss = _metric(metrics, "loss")
    loss = last_value(log_history, "eval_loss") if loss is None else loss
    training = metrics.get("train_runtime", last_value(log_history, "train_runtime"))
    evaluation = _metric(metrics, "runtime")
    facts = {
        "Questions": f"{len(results):,}",
        "Loss": None if loss is None else f"{loss:.3f}",
        "Training": None if training is None else duration(training),
        "Evaluation": None if evaluation is None else duration(evaluation),
    }
    return scores + [Tile(label, value) for label, value in facts.items() if value is not None]


def _metric(metrics: Mapping[str, float], *names: str) -> float | None:
    """Return the first metric that exists, with or without the prefix that the metrics of the evaluation share."""
    evaluated = [key for key in metrics if "_" in key and not key.startswith(("train_", "total_"))]
    for name in names:
        if name in metrics:
            return float(metrics[name])
        for key in evaluated:
            prefix = key.removesuffix(name)
            # "eval_f1", but neither "eval_HasAns_f1" nor "eval_avg_passage_f1".
            if prefix.endswith("_") and prefix != key and all(other.startswith(prefix) for other in evaluated):
                return float(metrics[key])
    return None


def pick(results: Sequence[QuestionResult], indices: Sequence[int]) -> list[QuestionResult]:
    return [results[index] for index in indices]


def kinds_bar(kinds: Sequence[Kind], ranking: Sequence[Kind], unlisted: Kind | None = None) -> Markup:
    """Return a bar with the share of each kind; all but ``unlisted`` link to their questions in the explorer.

    ``ranking`` is the ranking of the explorer.
    """
    counts = count_kinds(kinds)
    links = {kind: kind_link(ranking.index(kind)) for kind in counts if kind is not unlisted}
    return macros("parts.html.j2").share_bar(counts, links)


def group_tables(
    table: Callable[..., Markup],
    figures_of: Callable[..., Any],
    ways: Sequence[Grouping],
    *runs: Sequence[QuestionResult],
) -> Markup:
    """Return a table for each grouping, rendered by the macro ``table`` from the figures of each group in the runs."""
    tables = []
    for number, way in enumerate(ways):
        members = way.members(runs[-1]).items()
        figures = [figures_of(name, *(pick(run, rows) for run in runs)) for name, rows in members]
        tables.append(table(way, [(figure, group_link(number, figure.name)) for figure in figures]))
    return panels(*tables)


def _confidence(record: RunRecord) -> Markup:
    measured = calibration(record.results)
    thresholds = threshold_curve(record.results)
    sentences, charts = [], []
    if measured:
        charts.append(_reliability_chart(measured))
        sentences.append(Markup("Expected calibration error: <b>{:.1%}</b>.").format(measured.error))
    if thresholds:
        best = thresholds.best
        charts.append(_threshold_chart(thresholds, record.settings.get("postprocess") or {}))
        sentences.append(
            Markup(
                "The best threshold for these questions is <b>{:.3g}</b>, with an F1 of <b>{:.1f}</b>; on other "
                "questions it may do worse, because it was chosen on these."
            ).format(thresholds.thresholds_T[best], thresholds.f1_T[best])
        )
    if not charts:
        return Markup()
    return Markup('<p class="finding">{}</p>{}').format(Markup(" ").join(sentences), panels(*charts))


def _reliability_chart(measured: Calibration) -> Markup:
    """Return a reliability diagram as an HTML figure: a bar for each range of confidence, and its numbers below."""
    frame = Frame((0, 100), [0, 20, 40, 60, 80, 100])
    bars, whiskers = [], []
    for bin_ in measured.bins:
        left = frame.x(100 * bin_.low) + _GAP
        right = frame.x(100 * bin_.high) - _GAP
        top = frame.y(100 * bin_.accuracy)
        bars.append(f"M{left:.2f} 100V{top:.2f}H{right:.2f}V100Z")
        middle = frame.x(50 * (bin_.low + bin_.high))
        high, low = (frame.y(100 * end) for end in (bin_.interval.high, bin_.interval.low))
        whiskers.append(f"M{middle:.2f} {high:.2f}V{low:.2f}")
    return macros("charts.html.j2").reliability_chart(measured.bins, frame, bars, whiskers)


def _threshold_chart(thresholds: ThresholdCurve, postprocess: Mapping[str, Any]) -> Markup:
    # The best point stays whatever the spacing.
    num_points = len(thresholds.thresholds_T)
    shown = np.unique(np.append(np.linspace(0, num_points - 1, _MAX_POINTS).astype(np.int64), thresholds.best))
    xs = thresholds.thresholds_T[shown].tolist()
    best = float(thresholds.thresholds_T[thresholds.best])
    marks = [Mark(f"best F1, at {best:.3g}", best)]
    used = postprocess.get("null_score_diff_threshold")
    if isinstance(used, int | float) and thresholds.thresholds_T[0] <= used <= thresholds.thresholds_T[-1]:
        marks.append(Mark(f"used, {used:.3g}", used))
    return line_chart(
        "Scores by no-answer threshold",
        [
            Series("F1", "first", list(zip(xs, thresholds.f1_T[shown].tolist(), strict=True))),
            Series("exact match", "second", list(zip(xs, thresholds.exact_T[shown].tolist(), strict=True))),
        ],
        x_name="threshold",
        x_from_zero=False,
        marks=marks,
    )


def _draw_learning_curves(record: RunRecord) -> Markup:
    log_history = record.log_history
    exact = curve(log_history, "eval_exact_match") or curve(log_history, "eval_exact")
    scores = [
        Series("F1", "first", curve(log_history, "eval_f1"), dotted=True),
        Series("exact match", "second", exact, dotted=True),
    ]
    charts = {"Evaluation scores": scores}
    own = curve(log_history, f"eval_{record.headline}")
    if record.headline not in ("f1", "exact", "exact_match") and own:
        # In a chart of its own: it may have another range.
        charts[record.headline] = [Series(record.headline, "first", own, dotted=True)]
    return draw_training_charts(log_history, charts)


def last_value(log_history: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return next((float(entry[key]) for entry in reversed(log_history) if key in entry), None)
