"""The headline: a sentence and the scores of the whole set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portico.mrc.report.figures.history import last_value
from portico.mrc.report.figures.intervals import Interval
from portico.mrc.report.figures.outcomes import outcome_counts
from portico.mrc.report.figures.slices import score
from portico.mrc.report.html.markup import escaped
from portico.mrc.report.results import QuestionResult

# A score this near to the mean of the questions' scores is that mean, so its interval is known, in percent.
_SAME = 0.05


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the headline.

    Args:
        label: What it is.
        value: How it is written.
        percent: Length of its bar, 0..100, or None for a figure that is no share.
        interval: Its confidence interval, or None.
    """

    label: str
    value: str
    percent: float | None = None
    interval: Interval | None = None


def tiles(
    results: Sequence[QuestionResult], metrics: Mapping[str, float], log_history: Sequence[Mapping[str, Any]]
) -> list[Tile]:
    """Return the figures at hand: the scores in `metrics` (any prefix), else those of `results`.

    A score that is not the mean of the questions' scores, as by the rules of another data set, has no interval.
    """
    answerable = [result for result in results if result.golds]
    unanswerable = [result for result in results if not result.golds]
    f1, exact = _metric(metrics, "f1"), _exact_match(metrics)
    if results:
        total = score("", results)
        scores = [
            _share("F1", f1, total.f1, total.f1_interval),
            _share("Exact match", exact, total.exact, total.exact_interval),
        ]
    else:
        scores = [
            Tile(label, f"{value:.1f}", value)
            for label, value in (("F1", f1), ("Exact match", exact))
            if value is not None
        ]
    if answerable and unanswerable:
        has_answer, no_answer = score("", answerable), score("", unanswerable)
        scores += [
            _share("F1, has answer", _metric(metrics, "HasAns_f1"), has_answer.f1, has_answer.f1_interval),
            _share("Accuracy, no answer", _metric(metrics, "NoAns_exact"), no_answer.exact, no_answer.exact_interval),
        ]
    return scores + _facts(len(results), metrics, log_history)


def lead(results: Sequence[QuestionResult]) -> str:
    """Return a sentence that sums the evaluation up."""
    if not results:
        return "No question was evaluated."
    counts = outcome_counts(results)
    num_right = sum(count for kind, count in counts.items() if kind.is_right)
    num_unanswerable = sum(not result.golds for result in results)
    of_which = f", {num_unanswerable:,} of them without an answer" if num_unanswerable else ""
    return f"{num_questions(len(results))}{of_which}: {num_right:,} right, {len(results) - num_right:,} to look at."


def num_questions(count: int) -> str:
    """Return a number of questions for reading."""
    return "1 question" if count == 1 else f"{count:,} questions"


def tiles_html(figures: Sequence[Tile]) -> str:
    """Return the figures as HTML description lists, the shares first."""
    shares = "".join(_tile_html(tile) for tile in figures if tile.percent is not None)
    facts = "".join(_tile_html(tile) for tile in figures if tile.percent is None)
    return "".join(f'<dl class="tiles">{group}</dl>' for group in (shares, facts) if group)


def duration(seconds: float) -> str:
    """Return a time span for reading, as "2 h 5 min", "3 min 20 s" or "4.2 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _exact_match(metrics: Mapping[str, float]) -> float | None:
    # SQuAD 1.1's name, then SQuAD 2.0's.
    exact = _metric(metrics, "exact_match")
    return _metric(metrics, "exact") if exact is None else exact


def _share(label: str, measured: float | None, mean: float, interval: Interval) -> Tile:
    percent = mean if measured is None else measured
    return Tile(label, f"{percent:.1f}", percent, interval if abs(percent - mean) < _SAME else None)


def _facts(count: int, metrics: Mapping[str, float], log_history: Sequence[Mapping[str, Any]]) -> list[Tile]:
    loss = _metric(metrics, "loss")
    loss = last_value(log_history, "eval_loss") if loss is None else loss
    training = metrics.get("train_runtime", last_value(log_history, "train_runtime"))
    evaluation = _metric(metrics, "runtime")
    facts = [
        Tile("Questions", f"{count:,}"),
        None if loss is None else Tile("Loss", f"{loss:.3f}"),
        None if training is None else Tile("Training", duration(training)),
        None if evaluation is None else Tile("Evaluation", duration(evaluation)),
    ]
    return [fact for fact in facts if fact]


def _metric(metrics: Mapping[str, float], name: str) -> float | None:
    # The prefix is the caller's choice; the shortest match is the plain score ("eval_f1", not "eval_HasAns_f1").
    keys = [key for key in metrics if key == name or (key.endswith(f"_{name}") and not key.startswith("train_"))]
    return float(metrics[min(keys, key=len)]) if keys else None


def _tile_html(tile: Tile) -> str:
    css_class = "fact" if tile.percent is None else "score"
    return f'<div class="{css_class}"><dt>{escaped(tile.label)}</dt><dd>{escaped(tile.value)}{_meter(tile)}</dd></div>'


def _meter(tile: Tile) -> str:
    if tile.percent is None:
        return ""
    meter = f'<i style="width:{tile.percent:.1f}%"></i>'
    if tile.interval is None:
        return f'<span class="meter">{meter}</span>'
    low, high = tile.interval
    return (
        f'<span class="meter">{meter}<i class="range" style="left:{low:.1f}%;width:{high - low:.1f}%"></i></span>'
        f'<span class="interval">{low:.1f} to {high:.1f}</span>'
    )
