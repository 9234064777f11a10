"""TyDi QA, in Google's form (nested lists) and in that of the hub (lists of columns); offsets count UTF-8 bytes."""

from collections.abc import Mapping
from typing import Any

from portico.mrc.readers.annotations import (
    Annotation,
    Span,
    candidates,
    checked_passage,
    checked_span,
    checked_yes_no,
    span_answers,
    target,
)
from portico.mrc.readers.byte_offsets import ByteOffsets
from portico.mrc.readers.records import Example, as_objects, checked_id, checked_text, required

_WHAT = (
    "a TyDi QA record; it has question_text, document_plaintext, annotations, passage_answer_candidates and perhaps "
    "example_id, language"
)


def is_tydi(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry looks like TyDi QA's primary task."""
    return {"question_text", "document_plaintext"} <= set(entry)


def example(raw: Any) -> Example:
    """Return the record with characters in place of bytes.

    Raises:
        InvalidRecord: If a field is missing or wrong.
    """
    question, document, annotations, passages = (
        required(raw, key, _WHAT)
        for key in ("question_text", "document_plaintext", "annotations", "passage_answer_candidates")
    )
    document = checked_text("document_plaintext", document)
    offsets = ByteOffsets(document)
    spans = passage_spans(passages, offsets)
    said = [
        Annotation(
            checked_span(one.span, len(document), "minimal_answer"),
            checked_passage(one.passage, len(spans), "candidate_index"),
            checked_yes_no(one.yes_no),
        )
        for one in read_annotations(annotations, offsets)
    ]
    identifier = {"id": checked_id("example_id", raw["example_id"])} if "example_id" in raw else {}
    return {
        **identifier,
        "title": str(raw.get("document_title") or ""),
        "context": document,
        "question": checked_text("question_text", question),
        "answers": span_answers(document, said),
        "language": str(raw.get("language") or "UNKNOWN"),
        "target": target(said),
        "passage_candidates": candidates(spans),
    }


def passage_spans(passages: Any, offsets: ByteOffsets) -> list[Span]:
    """Return the characters of every passage candidate, in either form of the data."""
    return [
        offsets.span(passage["plaintext_start_byte"], passage["plaintext_end_byte"])
        for passage in as_objects(passages, "passage_answer_candidates")
    ]


def read_annotations(annotations: Any, offsets: ByteOffsets) -> list[Annotation]:
    """Return what every annotator said, in either form of the data, not yet checked."""
    return [_annotation(one, offsets) for one in as_objects(annotations, "annotations")]


def _annotation(one: Mapping[str, Any], offsets: ByteOffsets) -> Annotation:
    if "minimal_answers_start_byte" in one:  # as the hub has it
        start, end = one["minimal_answers_start_byte"], one["minimal_answers_end_byte"]
        passage = one["passage_answer_candidate_index"]
    else:
        answer = required(one, "minimal_answer", "an annotation of TyDi QA; it has minimal_answer, passage_answer")
        start, end = answer["plaintext_start_byte"], answer["plaintext_end_byte"]
        passage = one["passage_answer"]["candidate_index"]
    return Annotation(offsets.span(start, end), passage, one["yes_no_answer"])
