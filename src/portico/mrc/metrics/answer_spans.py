"""Answers by where they are: what annotators and models say of a question in TyDi QA and Natural Questions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from portico.errors import InputError

Span: TypeAlias = tuple[int, int]
"""Start and end in characters or bytes, the end not included; -1 and -1 where there is none."""

YES_NO_NONE = ("yes", "no", "none")
# PrimeQA's target types; all others are neither yes nor no.
_BY_TARGET_TYPE = {3: "yes", 4: "no"}


class SpanAnswer(NamedTuple):
    """What one annotator or the model says.

    Attributes:
        passage_index: Which passage holds the answer, -1 for none.
        span: The answer in it.
        yes_no: ``"yes"``, ``"no"``, or ``"none"`` where the answer is neither.
    """

    passage_index: int
    span: Span
    yes_no: str

    @property
    def is_minimal(self) -> bool:
        """Whether there is a span, or yes, or no."""
        return self.span[0] >= 0 or self.yes_no != "none"


class Prediction(NamedTuple):
    """What the model says, and how sure it is.

    Attributes:
        answer: What it says.
        passage_score: Score of the passage.
        minimal_score: Score of the span, or of yes or no.
    """

    answer: SpanAnswer
    passage_score: float
    minimal_score: float


def checked_span(start: int, end: int, *, key: Any) -> Span:
    """Return the span as it is counted.

    Args:
        start: Its start, negative for none.
        end: Its end, which is not included.
        key: Id of the question, for the error.

    Raises:
        InputError: If only one end is negative, or the end comes before the start.
    """
    if start < 0 and end < 0:
        return (-1, -1)
    if start < 0 or end < start:
        raise InputError(
            f"Question {key!r} has an answer from {start} to {end}; give a start and an end not before it, or -1 and "
            "-1 where there is no answer."
        )
    return (int(start), int(end))


def checked_yes_no(value: Any, *, key: Any) -> str:
    """Return ``"yes"``, ``"no"`` or ``"none"`` of a word in any case, or of a target type of PrimeQA.

    Raises:
        InputError: If it is another word.
    """
    if not isinstance(value, str):
        return _BY_TARGET_TYPE.get(int(value), "none")
    if value.lower() not in YES_NO_NONE:
        raise InputError(f"Question {key!r} has the yes-no answer {value!r}; give one of {', '.join(YES_NO_NONE)}.")
    return value.lower()


def check_prediction(yes_no: str, *, has_span: bool, scores: Sequence[float], key: Any) -> None:
    """Refuse a prediction that is yes or no and a span as well, or has a score that is not a number.

    Raises:
        InputError: Names the question.
    """
    if yes_no != "none" and has_span:
        raise InputError(
            f"Question {key!r} was answered with {yes_no!r} and with a span; give one of them (-1 and -1 as the span, "
            "or a yes-no answer of 'none')."
        )
    if any(math.isnan(score) for score in scores):
        raise InputError(f"The answer to question {key!r} has a score that is not a number; give finite scores.")


def check_same_questions(predictions: Mapping[Any, Any], references: Mapping[Any, Any]) -> None:
    """Refuse predictions and references that are not of the same questions.

    Raises:
        InputError: Names a question that only one of them has.
    """
    different = predictions.keys() ^ references.keys()
    if different:
        key = min(different, key=str)
        has, lacks = ("a reference", "prediction") if key in references else ("a prediction", "reference")
        raise InputError(
            f"{len(different)} questions have a prediction or a reference, but not both; {key!r} has {has} and no "
            f"{lacks}. Predict every question once (-1 and -1 as the span for no answer)."
        )
