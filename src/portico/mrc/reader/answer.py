"""The answer to one question."""

from collections.abc import Iterator
from dataclasses import dataclass

from portico.mrc.postprocess import Answers
from portico.mrc.postprocess.answers import SpanAnswer
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
    places = (answers.rows_E - answers.shortlist.ranked.row_starts[:-1]).tolist()
    for place, (example_id, candidates) in zip(places, answers.candidates.items(), strict=True):
        span = answers.spans[example_id]
        own = candidates[place] if place >= 0 else None
        yield Answer(
            text=answers.predictions[example_id],
            start=span[0] if span else None,
            end=span[1] if span else None,
            context_index=own.context_index if own and span else None,
            score=own.score if own else 0.0,
            probability=own.probability if own else 0.0,
            answer_type=answers.answer_types[example_id],
            null_odds=None if answers.null_odds is None else answers.null_odds[example_id],
            candidates=tuple(candidates),
        )
