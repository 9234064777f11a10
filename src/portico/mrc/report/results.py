"""What became of each question: the rows that every figure of the report is made of."""

from dataclasses import dataclass
from typing import NamedTuple

Span = tuple[int, int]


class Candidate(NamedTuple):
    """One entry of a question's n-best list.

    Args:
        text: The answer; empty for "no answer".
        probability: Its share among the candidates of the question, in 0..1.
        score: The model's score, as a sum of logits, or None if the run did not keep it.
    """

    text: str
    probability: float
    score: float | None = None


class Scores(NamedTuple):
    """How well one text answers one question.

    Args:
        exact: 1.0 if it equals an accepted answer after normalisation, else 0.0.
        f1: Word overlap with the best accepted answer, in 0..1.
    """

    exact: float
    f1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionResult:
    """One evaluated question.

    Args:
        id: The question's id.
        title: Title of the article; may be empty.
        question: The question.
        context: The whole passage; all offsets count its characters.
        golds: Accepted answers as `(text, start)`; empty if the question has no answer. A negative start stands for
            an answer whose place is not known.
        predicted_text: The model's answer; empty if it declined to answer.
        predicted_start: First character of the answer in `context`, or None.
        predicted_end: The character after its last one, or None.
        probability: The model's confidence in its answer, in 0..1, or None if the run did not keep it.
        null_odds: Score of "no answer" minus that of the best span, or None if the model cannot decline.
        exact: 1.0 if the answer equals an accepted one after normalisation, else 0.0.
        f1: Word overlap with the best accepted answer, in 0..1.
        question_type: A label of the data to group by, or an empty text.
        language: Language of the question as the data names it, or an empty text.
        nbest: The best candidates, best first.
        if_answered: Scores of the best candidate that is not empty, or of an empty text if there is none: what
            answering in any case would give. None if the run did not keep candidates.
    """

    id: str
    title: str
    question: str
    context: str
    golds: tuple[tuple[str, int], ...]
    predicted_text: str
    predicted_start: int | None
    predicted_end: int | None
    probability: float | None
    null_odds: float | None
    exact: float
    f1: float
    question_type: str = ""
    language: str = ""
    nbest: tuple[Candidate, ...] = ()
    if_answered: Scores | None = None

    @property
    def predicted_span(self) -> Span | None:
        """The answer's character range in `context`, end exclusive, or None."""
        if self.predicted_start is None or self.predicted_end is None:
            return None
        return self.predicted_start, self.predicted_end

    @property
    def gold_spans(self) -> list[Span]:
        """The accepted answers' character ranges in `context`, ends exclusive, where their place is known."""
        return [(start, start + len(text)) for text, start in self.golds if start >= 0]
