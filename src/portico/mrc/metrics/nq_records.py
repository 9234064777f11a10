"""Predictions and references of Natural Questions, in PrimeQA's form or in that of the official files."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from portico.errors import InputError
from portico.mrc.metrics.annotators import Annotated, Record, annotators_of, shared_value
from portico.mrc.metrics.answer_spans import check_prediction, checked_yes_no

_UNITS = ("byte", "token")


class NqSpan(NamedTuple):
    """A span in bytes, in tokens, or both; -1 where it is not known.

    Attributes:
        byte: Its first byte and the one after its last.
        token: Its first token and the one after its last.
    """

    byte: tuple[int, int]
    token: tuple[int, int]

    @property
    def is_null(self) -> bool:
        """Whether it stands for no answer."""
        return self.byte[0] < 0 and self.token[0] < 0

    def equals(self, other: "NqSpan") -> bool:
        """Return whether both are the same bytes, or the same tokens."""
        return any(mine[0] >= 0 and mine == theirs for mine, theirs in zip(self, other, strict=True))


class NqAnswer(NamedTuple):
    """What one annotator or the model says.

    Attributes:
        long: The long answer.
        shorts: The short answers, null ones left out.
        yes_no: ``"yes"``, ``"no"``, or ``"none"`` where the answer is neither.
    """

    long: NqSpan
    shorts: tuple[NqSpan, ...]
    yes_no: str

    @property
    def is_short(self) -> bool:
        """Whether there is a short answer, or yes, or no."""
        return bool(self.shorts) or self.yes_no != "none"


class NqPrediction(NamedTuple):
    """What the model says, and how sure it is.

    Attributes:
        answer: What it says.
        long_score: Score of the long answer.
        short_score: Score of the short answers, or of yes or no.
    """

    answer: NqAnswer
    long_score: float
    short_score: float


_NULL = NqSpan((-1, -1), (-1, -1))


def read_predictions(predictions: Sequence[Record]) -> dict[str, NqPrediction]:
    """Return the predictions by the ids of their questions; of several with one id the last."""
    return {str(record["example_id"]): _prediction(record) for record in predictions}


def read_references(references: Sequence[Annotated]) -> dict[str, list[NqAnswer]]:
    """Return what the annotators say, by the ids of the questions; of several with one id the last."""
    return dict(map(_reference, references))


def _prediction(record: Record) -> NqPrediction:
    key = record["example_id"]
    if "start_position" in record:
        answer, short_score = _answer(record, key), float(record["confidence_score"])
        long_score = float(record.get("passage_score", short_score))
    else:
        answer = _official_answer(record, key)
        long_score, short_score = (float(record[f"{name}_score"]) for name in ("long_answer", "short_answers"))
    check_prediction(answer.yes_no, has_span=bool(answer.shorts), scores=(long_score, short_score), key=key)
    return NqPrediction(answer, long_score, short_score)


def _reference(reference: Annotated) -> tuple[str, list[NqAnswer]]:
    if isinstance(reference, Mapping) and "annotations" in reference:
        key = str(reference["example_id"])
        return key, [_official_answer(annotation, key) for annotation in reference["annotations"]]
    annotators = annotators_of(reference)
    key = str(shared_value(reference, annotators, "example_id"))
    return key, [_answer(one, key) for one in annotators]


def _answer(record: Record, key: Any) -> NqAnswer:
    passage = int(record["passage_index"])
    span = NqSpan(_checked((record["start_position"], record["end_position"]), key), (-1, -1))
    # Passages are compared by their index alone.
    long = _NULL if passage < 0 else NqSpan((passage, passage + 1), (-1, -1))
    return NqAnswer(long, _without_null([span]), checked_yes_no(record["yes_no_answer"], key=key))


def _official_answer(record: Record, key: Any) -> NqAnswer:
    return NqAnswer(
        _official_span(record.get("long_answer", {}), key),
        _without_null([_official_span(span, key) for span in record.get("short_answers", ())]),
        checked_yes_no(record.get("yes_no_answer", "none"), key=key),
    )


def _official_span(span: Record, key: Any) -> NqSpan:
    return NqSpan(*(_checked((span.get(f"start_{unit}", -1), span.get(f"end_{unit}", -1)), key) for unit in _UNITS))


def _without_null(spans: Sequence[NqSpan]) -> tuple[NqSpan, ...]:
    return tuple(span for span in spans if not span.is_null)


def _checked(span: tuple[int, int], key: Any) -> tuple[int, int]:
    start, end = span
    if start < 0 and end < 0:
        return (-1, -1)
    if start < 0 or end <= start:
        raise InputError(
            f"Question {key!r} has an answer from {start} to {end}; give a start and an end after it, or -1 and -1 "
            "where there is no answer."
        )
    return (int(start), int(end))
