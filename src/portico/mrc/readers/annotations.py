"""What annotators said about a question, in the terms of PrimeQA's base schema."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portico.mrc.readers.defects import InvalidRecord
from portico.mrc.readers.wording import found

Span = tuple[int, int]
NO_SPAN: Span = (-1, -1)


@dataclass(frozen=True)
class Annotation:
    """The answer of one annotator.

    Attributes:
        span: Characters ``[start, end)`` of the answer in its context, (-1, -1) without one.
        passage: The passage candidate, or of several contexts the one, that holds the answer; -1 without one.
        yes_no: ``"YES"``, ``"NO"`` or ``"NONE"``.
    """

    span: Span = NO_SPAN
    passage: int = -1
    yes_no: str = "NONE"


def target(annotations: Sequence[Annotation]) -> dict[str, list[Any]]:
    """Return the annotations as the base schema stores them: one list a field, one entry an annotator."""
    return {
        "start_positions": [annotation.span[0] for annotation in annotations],
        "end_positions": [annotation.span[1] for annotation in annotations],
        "passage_indices": [annotation.passage for annotation in annotations],
        "yes_no_answer": [annotation.yes_no for annotation in annotations],
    }


def candidates(spans: Sequence[Span]) -> dict[str, list[int]]:
    """Return passages as the base schema stores them: where each begins and ends."""
    return {"start_positions": [start for start, _ in spans], "end_positions": [end for _, end in spans]}


def span_answers(context: str, annotations: Sequence[Annotation]) -> dict[str, list[Any]]:
    """Return the distinct answer spans as SQuAD stores them, in the order of the annotators."""
    spans = dict.fromkeys(annotation.span for annotation in annotations if annotation.span[0] >= 0)
    return {"text": [context[start:end] for start, end in spans], "answer_start": [start for start, _ in spans]}


def checked_span(span: Span, length: int, key: str) -> Span:
    """Return a span of a text of `length` characters, or (-1, -1) where it is null.

    Raises:
        InvalidRecord: If it is empty or leaves the text.
    """
    if span[0] == -1 or span[1] == -1:
        return NO_SPAN
    if not 0 <= span[0] < span[1] <= length:
        raise InvalidRecord(f"`{key}` is {span[0]} to {span[1]}, but the text has {length} characters, from 0.")
    return span


def checked_passage(index: Any, num_passages: int, key: str) -> int:
    """Return the index of a passage, -1 for none.

    Raises:
        InvalidRecord: If there is no such passage.
    """
    if isinstance(index, bool) or not isinstance(index, int) or not -1 <= index < num_passages:
        raise InvalidRecord(f"`{key}` must be -1 or below the number of passages, {num_passages}, but {found(index)}.")
    return index


def checked_yes_no(value: Any, key: str = "yes_no_answer") -> str:
    """Return ``"YES"``, ``"NO"`` or ``"NONE"``, also from the numbers -1, 0 (no), 1 (yes) of Natural Questions.

    Raises:
        InvalidRecord: If it is none of these.
    """
    words: Mapping[Any, str] = {-1: "NONE", 0: "NO", 1: "YES"}
    word = words.get(value, value) if not isinstance(value, bool) else value
    if isinstance(word, str) and word.upper() in ("YES", "NO", "NONE"):
        return word.upper()
    raise InvalidRecord(f"`{key}` must be YES, NO or NONE, but {found(value)}.")
