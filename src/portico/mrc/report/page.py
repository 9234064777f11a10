from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any

from portico.mrc.report import breakdown, selection
from portico.mrc.report.charts import Series, line_chart
from portico.mrc.report.history import curve
from portico.mrc.report.markup import escaped
from portico.mrc.report.questions import question_list, toolbar
from portico.mrc.report.results import QuestionResult
from portico.mrc.report.scores import lead, tiles, tiles_html
from portico.mrc.report.settings import settings_tables
from portico.mrc.report.tables import group_table, outcome_bar

_NUM_WORST = 40
_NUM_NEAR_MISSES = 8
_NUM_BEST = 6
_NUM_UNFOLDED = 3


def write_report(
    path: str | Path,
    results: Sequence[QuestionResult],
    *,
    metrics: Mapping[str, float],
    log_history: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    title: str,
    more_sections: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write one HTML file that needs nothing else: no network, no other file.

    Args:
        path: The file to write, UTF-8; its folder must exist.
        results: Every evaluated question; may be empty.
        metrics: Scores of the set, 0..100, under SQuAD's names with any prefix, besides loss and run times in
            seconds. Scores that are not there are computed from `results`.
        log_history: The entries a `TrainerState` collects; those with a `step` are drawn.
        settings: What the run was started with; mappings inside become one table each.
        title: Heading of the page.
        more_sections: HTML by heading, shown after the learning curves.
    """
    page = Template(_asset("report.html")).substitute(
        title=escaped(title),
        style=_asset("report.css"),
        script=_asset("report.js"),
        lead=escaped(lead(results)),
        tiles=tiles_html(tiles(results, metrics, log_history)),
        sections=_breakdown(results)
        + _learning(log_history)
        + "".join(_section(_identifier(heading), escaped(heading), html) for heading, html in more_sections.items())
        + _questions(results)
        + _settings(settings),
    )
    # A lone surrogate in a passage cannot be encoded; it is shown as a question mark rather than lose the report.
    Path(path).write_text(page, encoding="utf-8", errors="replace")


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _section(identifier: str, title: str, content: str) -> str:
    return f'<section id="{identifier}"><h2>{title}</h2>{content}</section>' if content else ""


def _identifier(heading: str) -> str:
    return "-".join(heading.lower().split())


def _breakdown(results: Sequence[QuestionResult]) -> str:
    if not results:
        return ""
    tables = (
        group_table("By question", "type", breakdown.by_question_type(results)),
        group_table("By length of the answer", "expected", breakdown.by_answer_length(results)),
        group_table("By confidence", "how sure", breakdown.by_confidence(results)),
    )
    bar = outcome_bar(breakdown.outcome_counts(results))
    return _section("breakdown", "Where it is strong and weak", f'{bar}<div class="panels">{"".join(tables)}</div>')


def _learning(log_history: Sequence[Mapping[str, Any]]) -> str:
    charts = (
        line_chart(
            "Loss",
            (
                Series("training", "first", curve(log_history, "loss")),
                Series("evaluation", "second", curve(log_history, "eval_loss"), dotted=True),
            ),
        ),
        line_chart(
            "Scores in evaluation",
            (
                Series("F1", "first", curve(log_history, "eval_f1"), dotted=True),
                Series("exact match", "second", _exact_match(log_history), dotted=True),
            ),
        ),
        line_chart("Learning rate", (Series("learning rate", "first", curve(log_history, "learning_rate")),)),
    )
    drawn = "".join(charts)
    return _section("learning", "How it learned", f'<div class="panels">{drawn}</div>' if drawn else "")


def _exact_match(log_history: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, float], ...]:
    return curve(log_history, "eval_exact_match") or curve(log_history, "eval_exact")


def _questions(results: Sequence[QuestionResult]) -> str:
    near_misses = selection.near_misses(results, _NUM_NEAR_MISSES)
    worst = [result for result in selection.worst(results, _NUM_WORST) if result not in near_misses]
    best = selection.best(results, _NUM_BEST)
    lists = (
        question_list("Worst", "Lowest F1 first, the most confident first.", worst, num_open=_NUM_UNFOLDED),
        question_list("Near misses", "The right place with other boundaries, the closest first.", near_misses),
        question_list("Done well", "Exact answers, the longest first.", best),
    )
    drawn = "".join(lists)
    legend = (
        '<p class="legend-spans">In a passage: <mark class="gold">expected</mark>, '
        '<mark class="predicted">answered</mark>, <mark class="gold predicted">both</mark>.</p>'
    )
    shown = [*worst, *near_misses, *best]
    return _section("questions", "Questions to read", f"{toolbar(shown)}{legend}{drawn}" if drawn else "")


def _settings(settings: Mapping[str, Any]) -> str:
    tables = settings_tables(settings)
    return _section("settings", "Settings", f'<div class="panels">{tables}</div>' if tables else "")
