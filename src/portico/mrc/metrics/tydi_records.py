"""Predictions and references of TyDi QA, in PrimeQA's form or in that of the official files."""

from collections.abc import Mapping, Sequence
from typing import Any

from portico.mrc.metrics.annotators import Annotated, Record, annotators_of, shared_value
from portico.mrc.metrics.answer_spans import Prediction, SpanAnswer, check_prediction, checked_span, checked_yes_no


def read_predictions(predictions: Sequence[Record]) -> dict[str, Prediction]:
    """Return the predictions by the ids of their questions; of several with one id the last."""
    return {str(record["example_id"]): _prediction(record) for record in predictions}


def read_references(references: Sequence[Annotated]) -> dict[str, tuple[str, list[SpanAnswer]]]:
    """Return language and what the annotators say, by the ids of the questions; of several with one id the last."""
    return dict(map(_reference, references))


def _prediction(record: Record) -> Prediction:
    key = record["example_id"]
    if "start_position" in record:
        answer, minimal_score = _answer(record, key), float(record["confidence_score"])
        passage_score = float(record.get("passage_score", minimal_score))
    else:
        answer = _official_answer(record, key)
        passage_score, minimal_score = (float(record[f"{name}_answer_score"]) for name in ("passage", "minimal"))
    check_prediction(answer.yes_no, has_span=answer.span[0] >= 0, scores=(passage_score, minimal_score), key=key)
    return Prediction(answer, passage_score, minimal_score)


def _official_answer(record: Record, key: Any) -> SpanAnswer:
    span = record.get("minimal_answer", {})
    return SpanAnswer(
        int(record.get("passage_answer_index", -1)),
        checked_span(span.get("start_byte_offset", -1), span.get("end_byte_offset", -1), key=key),
        checked_yes_no(record.get("yes_no_answer", "none"), key=key),
    )


def _reference(reference: Annotated) -> tuple[str, tuple[str, list[SpanAnswer]]]:
    if isinstance(reference, Mapping) and "annotations" in reference:
        key = str(reference["example_id"])
        return key, (reference["language"], [_annotation(one, key) for one in reference["annotations"]])
    annotators = annotators_of(reference)
    key, language = (shared_value(reference, annotators, name) for name in ("example_id", "language"))
    return str(key), (str(language), [_answer(one, key) for one in annotators])


def _answer(record: Record, key: Any) -> SpanAnswer:
    return SpanAnswer(
        int(record["passage_index"]),
        checked_span(record["start_position"], record["end_position"], key=key),
        checked_yes_no(record["yes_no_answer"], key=key),
    )


def _annotation(annotation: Record, key: Any) -> SpanAnswer:
    span = annotation["minimal_answer"]
    return SpanAnswer(
        int(annotation["passage_answer"]["candidate_index"]),
        checked_span(span["plaintext_start_byte"], span["plaintext_end_byte"], key=key),
        checked_yes_no(annotation["yes_no_answer"], key=key),
    )
