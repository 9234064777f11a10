"""The answer to one question."""

from collections.abc import Iterator
from dataclasses import dataclass

from portico.mrc.answers import Answers
from portico.mrc.answers.shortlist import SpanAnswer
from portico.mrc.target_type import TargetType


@dataclass(frozen=True)
class Answer:
    """What a reader answers.

    Attributes:
        text: The answer, ``""`` for none.
        start: Its first character in its context; ``None`` where it is no span.
        end: The character after its last; ``None`` where it is no span.
        context_index: Which of the question's contexts it stands in; ``None`` where it is no span.
        score: What it was ranked by.
        probability: That it is right.
        answer_type: The kind of answer.
        null_odds: By how much the score of "no answer" exceeds the best span's; ``None`` where it was not asked for.
        candidates: The best answers, best first, "no answer" among them where it was asked for.
    """

    text: str
    start: int | None
    end: int | None
    context_index: int | None
    score: float
    probability: float
    answer_type: TargetType
    null_odds: float | None
    candidates: tuple[SpanAnswer, ...]


def answers_in_order(answers: Answers) -> Iterator[Answer]:
    """Yield the answer to every question, in the order of the examples."""
    for example_id, candidates in answers.candidates.items():
        text, span = answers.predictions[example_id], answers.spans[example_id]
        chosen = next((one for one in candidates if bool(one.text) == (span is not None)), None)
        yield Answer(
            text=text,
            start=span[0] if span else None,
            end=span[1] if span else None,
            context_index=chosen.context_index if span and chosen else None,
            score=chosen.score if chosen else 0.0,
            probability=chosen.probability if chosen else 0.0,
            answer_type=answers.answer_types[example_id],
            null_odds=None if answers.null_odds is None else answers.null_odds[example_id],
            candidates=tuple(candidates),
        )
