"""The headline: a sentence and the scores of the whole set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portico.mrc.report.breakdown import outcome_counts, score
from portico.mrc.report.history import last_value
from portico.mrc.report.markup import escaped
from portico.mrc.report.results import QuestionResult


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the headline.

    Args:
        label: What it is.
        value: How it is written.
        percent: Length of its bar, 0..100, or None for a figure that is no share.
    """

    label: str
    value: str
    percent: float | None = None


def tiles(
    results: Sequence[QuestionResult], metrics: Mapping[str, float], log_history: Sequence[Mapping[str, Any]]
) -> list[Tile]:
    """Return the figures at hand: the scores in `metrics` (any prefix), else those of `results`."""
    answerable = [result for result in results if result.golds]
    unanswerable = [result for result in results if not result.golds]
    total = score("", results) if results else None
    scores = [
        _share("F1", _metric(metrics, "f1"), total.f1 if total else None),
        _share("Exact match", _exact_match(metrics), total.exact if total else None),
    ]
    if answerable and unanswerable:
        has_answer, no_answer = score("", answerable), score("", unanswerable)
        scores += [
            _share("F1, has answer", _metric(metrics, "HasAns_f1"), has_answer.f1),
            _share("Accuracy, no answer", _metric(metrics, "NoAns_exact"), no_answer.exact),
        ]
    return [tile for tile in scores if tile] + _facts(len(results), metrics, log_history)


def lead(results: Sequence[QuestionResult]) -> str:
    """Return a sentence that sums the evaluation up."""
    if not results:
        return "No question was evaluated."
    counts = outcome_counts(results)
    num_right = sum(count for kind, count in counts.items() if kind.is_right)
    num_unanswerable = sum(not result.golds for result in results)
    of_which = f", {num_unanswerable:,} of them without an answer" if num_unanswerable else ""
    questions = "1 question" if len(results) == 1 else f"{len(results):,} questions"
    return f"{questions}{of_which}: {num_right:,} right, {len(results) - num_right:,} to look at."


def tiles_html(figures: Sequence[Tile]) -> str:
    """Return the figures as HTML description lists, the shares first."""
    shares = "".join(_tile_html(tile) for tile in figures if tile.percent is not None)
    facts = "".join(_tile_html(tile) for tile in figures if tile.percent is None)
    return "".join(f'<dl class="tiles">{group}</dl>' for group in (shares, facts) if group)


def _exact_match(metrics: Mapping[str, float]) -> float | None:
    # SQuAD 1.1's name, then SQuAD 2.0's.
    exact = _metric(metrics, "exact_match")
    return _metric(metrics, "exact") if exact is None else exact


def _share(label: str, measured: float | None, computed: float | None) -> Tile | None:
    percent = computed if measured is None else measured
    return None if percent is None else Tile(label, f"{percent:.1f}", percent)


def _facts(num_questions: int, metrics: Mapping[str, float], log_history: Sequence[Mapping[str, Any]]) -> list[Tile]:
    loss = _metric(metrics, "loss")
    loss = last_value(log_history, "eval_loss") if loss is None else loss
    training = metrics.get("train_runtime", last_value(log_history, "train_runtime"))
    evaluation = _metric(metrics, "runtime")
    facts = [
        Tile("Questions", f"{num_questions:,}"),
        None if loss is None else Tile("Loss", f"{loss:.3f}"),
        None if training is None else Tile("Training", duration(training)),
        None if evaluation is None else Tile("Evaluation", duration(evaluation)),
    ]
    return [fact for fact in facts if fact]


def _metric(metrics: Mapping[str, float], name: str) -> float | None:
    # The prefix is the caller's choice; the shortest match is the plain score ("eval_f1", not "eval_HasAns_f1").
    keys = [key for key in metrics if key == name or (key.endswith(f"_{name}") and not key.startswith("train_"))]
    return float(metrics[min(keys, key=len)]) if keys else None


def duration(seconds: float) -> str:
    """Return a time span for reading, as "2 h 5 min", "3 min 20 s" or "4.2 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _tile_html(tile: Tile) -> str:
    meter = "" if tile.percent is None else f'<span class="meter"><i style="width:{tile.percent:.1f}%"></i></span>'
    css_class = "fact" if tile.percent is None else "score"
    return f'<div class="{css_class}"><dt>{escaped(tile.label)}</dt><dd>{escaped(tile.value)}{meter}</dd></div>'
