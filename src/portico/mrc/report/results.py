"""What became of each question."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionResult:
    """One evaluated question.

    Args:
        id: The question's id.
        title: Title of the article; may be empty.
        question: The question.
        context: The whole passage; all offsets count its characters.
        golds: Accepted answers as `(text, start)`; empty if the question has no answer.
        predicted_text: The model's answer; empty if it declined to answer.
        predicted_start: First character of the answer in `context`, or None.
        predicted_end: The character after its last one, or None.
        probability: The model's confidence in its answer, in 0..1.
        null_odds: Score of "no answer" minus that of the best span, or None if the model cannot decline.
        exact: 1.0 if the answer equals an accepted one after normalisation, else 0.0.
        f1: Word overlap with the best accepted answer, in 0..1.
        question_type: A label to group by; if empty, the question word serves.
        nbest: The best candidates as `(text, probability)`, best first; an empty text is "no answer".
    """

    id: str
    title: str
    question: str
    context: str
    golds: tuple[tuple[str, int], ...]
    predicted_text: str
    predicted_start: int | None
    predicted_end: int | None
    probability: float
    null_odds: float | None
    exact: float
    f1: float
    question_type: str = ""
    nbest: tuple[tuple[str, float], ...] = ()

    @property
    def predicted_span(self) -> tuple[int, int] | None:
        """The answer's character range in `context`, end exclusive, or None."""
        if self.predicted_start is None or self.predicted_end is None:
            return None
        return self.predicted_start, self.predicted_end

    @property
    def gold_spans(self) -> list[tuple[int, int]]:
        """The accepted answers' character ranges in `context`, ends exclusive."""
        return [(start, start + len(text)) for text, start in self.golds]


class Outcome(Enum):
    """The one class each question falls in; the value is its name on the page."""

    EXACT = "exact"
    DECLINED = "rightly declined"
    BOUNDARY = "boundary"
    WRONG_SPAN = "wrong span"
    MISSED = "missed answer"
    ANSWERED_UNANSWERABLE = "answered the unanswerable"

    @property
    def is_right(self) -> bool:
        """Whether the question counts as exactly right."""
        return self in (Outcome.EXACT, Outcome.DECLINED)

    @property
    def css_class(self) -> str:
        """The name under which the style sheet colours this outcome."""
        return self.name.lower().replace("_", "-")


def outcome(result: QuestionResult) -> Outcome:
    """Return what became of the question."""
    if not result.golds:
        return Outcome.ANSWERED_UNANSWERABLE if result.predicted_text else Outcome.DECLINED
    if result.exact:
        return Outcome.EXACT
    if not result.predicted_text:
        return Outcome.MISSED
    return Outcome.BOUNDARY if _touches_gold(result) else Outcome.WRONG_SPAN


def _touches_gold(result: QuestionResult) -> bool:
    if result.predicted_span is None:
        return result.f1 > 0
    start, end = result.predicted_span
    return any(start < gold_end and gold_start < end for gold_start, gold_end in result.gold_spans)
