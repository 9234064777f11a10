"""Natural Questions: the hub's form, the original JSON lines and the simplified ones.

The context is the document's tokens, HTML tags among them, with one blank between two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from portico.mrc.readers.annotations import (
    NO_SPAN,
    Annotation,
    Span,
    candidates,
    checked_passage,
    checked_yes_no,
    span_answers,
    target,
)
from portico.mrc.readers.defects import InvalidRecord
from portico.mrc.readers.records import Example, as_objects, checked_id, checked_text, required

_WHAT = (
    "a Natural Questions record; it has annotations, long_answer_candidates and either document and question (as on "
    "the hub) or question_text and document_text or document_tokens (JSON lines)"
)


@dataclass(frozen=True)
class Document:
    """A document as one text and as tokens.

    Attributes:
        tokens: The tokens.
        context: The tokens with one blank between two.
        starts: Where each token begins in the context.
    """

    tokens: Sequence[str]
    context: str
    starts: Sequence[int]

    def chars(self, start_token: int, end_token: int) -> Span:
        """Return the characters ``[start, end)`` of the tokens ``[start_token, end_token)``; null stays null.

        Raises:
            InvalidRecord: If there are no such tokens.
        """
        if start_token == -1 or end_token == -1:
            return NO_SPAN
        if not 0 <= start_token < end_token <= len(self.tokens):
            raise InvalidRecord(
                f"an answer or candidate is tokens {start_token} to {end_token}, but the document has "
                f"{len(self.tokens)}, from 0."
            )
        return self.starts[start_token], self.starts[end_token - 1] + len(self.tokens[end_token - 1])


def is_natural_questions(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry looks like Natural Questions."""
    return {"annotations", "long_answer_candidates"} <= set(entry)


def example(raw: Any) -> Example:
    """Return the record with characters of the joined tokens in place of token numbers.

    Raises:
        InvalidRecord: If a field is missing or wrong.
    """
    document = read_document(raw)
    passages = passage_spans(raw, document)
    said = read_annotations(raw, document, len(passages))
    return {
        "id": checked_id("id", _either(raw, "example_id", "id")),
        "title": str(raw.get("document_title") or _inner(raw, "document").get("title") or ""),
        "context": checked_text("document", document.context),
        "question": checked_text("question", question_text(raw)),
        "answers": span_answers(document.context, said),
        "language": "english",
        "target": target(said),
        "passage_candidates": candidates(passages),
    }


def question_text(raw: Mapping[str, Any]) -> Any:
    """Return the question, in any form of the data."""
    return raw["question_text"] if "question_text" in raw else required(raw.get("question"), "text", _WHAT)


def read_document(raw: Any) -> Document:
    """Return the document of a record, in any form of the data.

    Raises:
        InvalidRecord: If there is none.
    """
    if isinstance(raw, Mapping) and "document_text" in raw:
        return _document(
            [{"token": token} for token in checked_text("document_text", raw["document_text"]).split(" ")]
        )
    if isinstance(raw, Mapping) and "document_tokens" in raw:
        return _document(as_objects(raw["document_tokens"], "document_tokens"))
    tokens = required(required(raw, "document", _WHAT), "tokens", _WHAT)
    return _document(as_objects(tokens, "document.tokens"))


def _document(rows: Sequence[Mapping[str, Any]]) -> Document:
    tokens = [row["token"] for row in rows]
    starts = list(accumulate((len(token) + 1 for token in tokens), initial=0))[:-1]
    return Document(tokens, " ".join(tokens), starts)


def passage_spans(raw: Any, document: Document) -> list[Span]:
    """Return the characters of every long answer candidate."""
    rows = as_objects(required(raw, "long_answer_candidates", _WHAT), "long_answer_candidates")
    return [document.chars(row["start_token"], row["end_token"]) for row in rows]


def read_annotations(raw: Any, document: Document, num_passages: int) -> list[Annotation]:
    """Return what every annotator said; of several short answers the first one.

    Raises:
        InvalidRecord: If an answer lies outside the document.
    """
    return [
        Annotation(
            _first_short_answer(one, document),
            checked_passage(one["long_answer"].get("candidate_index", -1), num_passages, "candidate_index"),
            checked_yes_no(one["yes_no_answer"]),
        )
        for one in as_objects(required(raw, "annotations", _WHAT), "annotations")
    ]


def _first_short_answer(annotation: Mapping[str, Any], document: Document) -> Span:
    short = as_objects(annotation["short_answers"], "short_answers")
    return document.chars(short[0]["start_token"], short[0]["end_token"]) if short else NO_SPAN


def _inner(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = raw.get(key)
    return inner if isinstance(inner, Mapping) else {}


def _either(raw: Mapping[str, Any], first: str, second: str) -> Any:
    return raw[first] if first in raw else required(raw, second, _WHAT)
