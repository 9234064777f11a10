"""TyDi QA's primary task, as Google distributes it (lists of objects) and as the hub does (objects of lists).

Its offsets count UTF-8 bytes.
"""

import numpy as np

from portico.mrc.datasets import records
from portico.mrc.datasets.examples import Example

_FIELDS = ("question_text", "document_plaintext", "annotations", "passage_answer_candidates")
_KIND = f"a TyDi QA record has {', '.join(_FIELDS)}, and optionally example_id, language"


class ByteOffsets:
    """Converts UTF-8 byte offsets of a string to character offsets."""

    def __init__(self, text: str) -> None:
        encoded = np.frombuffer(text.encode(), np.uint8)
        # Every byte except a continuation byte, 0b10xxxxxx, starts a character.
        self._num_started = np.concatenate(([0], np.cumsum((encoded & 0xC0) != 0x80)))

    def char(self, byte: int) -> int:
        """Return the character offset of a byte offset; offsets beyond the end become the end, and -1 stays -1."""
        records.check_position(byte, "start_byte or end_byte")
        return -1 if byte < 0 else int(self._num_started[min(byte, len(self._num_started) - 1)])

    def span(self, start_byte: int, end_byte: int) -> records.Span:
        return self.char(start_byte), self.char(end_byte)


def example(raw: records.RawRecord) -> Example:
    """Parse a record, converting bytes to characters."""
    question, document, annotations, passages = (records.read_key(raw, key, _KIND) for key in _FIELDS)
    document = records.check_text("document_plaintext", document)
    offsets = ByteOffsets(document)
    spans = passage_spans(passages, offsets)
    checked = [
        records.Annotation(
            records.check_span(annotation.span, len(document), "minimal_answer"),
            records.check_passage(annotation.passage, len(spans), "candidate_index"),
            records.check_yes_no(annotation.yes_no),
        )
        for annotation in read_annotations(annotations, offsets)
    ]
    identifier = {"id": records.check_id("example_id", raw["example_id"])} if "example_id" in raw else {}
    return {
        **identifier,
        "title": records.check_label("document_title", raw.get("document_title")),
        "context": document,
        "question": records.check_text("question_text", question),
        "answers": records.build_answers(document, checked),
        "language": records.check_label("language", raw.get("language")) or "UNKNOWN",
        "target": records.build_target(checked),
        "passage_candidates": records.build_candidates(spans),
    }


def passage_spans(passages: object, offsets: ByteOffsets) -> list[records.Span]:
    """Return the characters of every passage candidate."""
    return [
        offsets.span(passage["plaintext_start_byte"], passage["plaintext_end_byte"])
        for passage in records.read_objects(passages, "passage_answer_candidates")
    ]


def read_annotations(annotations: object, offsets: ByteOffsets) -> list[records.Annotation]:
    """Return the annotation of every annotator, not yet validated."""
    read = []
    for annotation in records.read_objects(annotations, "annotations"):
        if "minimal_answers_start_byte" in annotation:  # the hub's form
            start, end = annotation["minimal_answers_start_byte"], annotation["minimal_answers_end_byte"]
            passage = annotation["passage_answer_candidate_index"]
        else:
            answer = records.read_key(
                annotation, "minimal_answer", "an annotation of TyDi QA has minimal_answer, passage_answer"
            )
            start, end = answer["plaintext_start_byte"], answer["plaintext_end_byte"]
            passage = annotation["passage_answer"]["candidate_index"]
        read.append(records.Annotation(offsets.span(start, end), passage, annotation["yes_no_answer"]))
    return read


FORMAT = records.Format(
    "question_text, document_plaintext, annotations",
    lambda entry: {"question_text", "document_plaintext"} <= set(entry),
    example,
    unanswered={"annotations": [], "passage_answer_candidates": []},
)
