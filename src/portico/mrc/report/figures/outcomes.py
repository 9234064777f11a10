"""Right, or wrong in which way."""

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from portico.mrc.report.results import QuestionResult


class Outcome(Enum):
    """The one class each question falls in: its name on the page, and what it means."""

    EXACT = ("correct", "equal to an accepted answer")
    DECLINED = ("correct no-answer", "there is no answer, and none was given")
    BOUNDARY = ("boundary", "the right place, but too long or too short")
    WRONG_SPAN = ("wrong span", "text from another place")
    FALSE_NO_ANSWER = ("false no-answer", "there is an answer, but none was given")
    MISSED_NO_ANSWER = ("missed no-answer", "there is no answer, but one was given")

    def __init__(self, label: str, meaning: str) -> None:
        self.label = label
        self.meaning = meaning

    @property
    def is_right(self) -> bool:
        """Whether the question counts as exactly right."""
        return self in (Outcome.EXACT, Outcome.DECLINED)

    @property
    def css_class(self) -> str:
        """The name under which the style sheets colour this outcome."""
        return self.name.lower().replace("_", "-")


def outcome(result: QuestionResult) -> Outcome:
    """Return what became of the question."""
    if not result.golds:
        return Outcome.MISSED_NO_ANSWER if result.predicted_text else Outcome.DECLINED
    if result.exact:
        return Outcome.EXACT
    if not result.predicted_text:
        return Outcome.FALSE_NO_ANSWER
    return Outcome.BOUNDARY if _touches_gold(result) else Outcome.WRONG_SPAN


def outcome_counts(results: Sequence[QuestionResult]) -> dict[Outcome, int]:
    """Return how often each outcome occurred, in the order of `Outcome`, without those that never did."""
    counts = Counter(outcome(result) for result in results)
    return {kind: counts[kind] for kind in Outcome if counts[kind]}


def _touches_gold(result: QuestionResult) -> bool:
    if result.predicted_span is None or not result.gold_spans:
        return result.f1 > 0
    start, end = result.predicted_span
    return any(start < gold_end and gold_start < end for gold_start, gold_end in result.gold_spans)
