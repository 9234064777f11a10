"""Natural Questions, as records of the hub, as the original JSON lines and as the simplified ones.

The context is the document's tokens, HTML tags included, joined by single spaces.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from portico.data.defects import InvalidRecord, shorten
from portico.mrc.datasets import records
from portico.mrc.datasets.examples import Example

_KIND = (
    "a Natural Questions record has annotations, long_answer_candidates and either document and question (hub) or "
    "question_text and document_text or document_tokens (JSON lines)"
)


@dataclass(frozen=True)
class Document:
    """A document: its tokens joined by single spaces, and the characters ``[start, end)`` of each token."""

    context: str
    token_spans: Sequence[records.Span]

    def chars(self, span: Mapping[str, int]) -> records.Span:
        """Return the characters ``[start, end)`` of an answer or candidate, from its tokens; -1 means no span."""
        start_token, end_token = (records.check_position(span[key], key) for key in ("start_token", "end_token"))
        if start_token == -1 or end_token == -1:
            return records.NO_SPAN
        if not 0 <= start_token < end_token <= len(self.token_spans):
            shown = " to ".join(map(shorten, (start_token, end_token)))
            raise InvalidRecord(
                f"an answer or candidate is tokens {shown}, but the document has {len(self.token_spans)} tokens."
            )
        return self.token_spans[start_token][0], self.token_spans[end_token - 1][1]


def example(raw: records.RawRecord) -> Example:
    """Parse a record, converting token positions to characters of the context."""
    document = read_document(raw)
    passages, annotations = read_answers(raw, document.chars)
    for annotation in annotations:
        records.check_span(annotation.span, len(document.context), "short_answers")  # an answer of an empty token
    page = raw.get("document")
    title = raw.get("document_title") or (page.get("title") if isinstance(page, Mapping) else None)
    identifier = raw["example_id"] if "example_id" in raw else records.read_key(raw, "id", _KIND)
    return {
        "id": records.check_id("id", identifier),
        "title": records.check_label("title", title),
        "context": records.check_text("document", document.context),
        "question": records.check_text("question", question_text(raw)),
        "answers": records.build_answers(document.context, annotations),
        "language": "english",
        "target": records.build_target(annotations),
        "passage_candidates": records.build_candidates(passages),
    }


def question_text(raw: records.RawRecord) -> Any:
    """Return the question, in any form of the data."""
    return raw["question_text"] if "question_text" in raw else records.read_key(raw.get("question"), "text", _KIND)


def read_document(raw: records.RawRecord) -> Document:
    """Return the document of a record, in any form of the data."""
    if isinstance(raw, Mapping) and "document_text" in raw:
        tokens = records.check_text("document_text", raw["document_text"]).split(" ")
    elif isinstance(raw, Mapping) and "document_tokens" in raw:
        tokens = [row["token"] for row in records.read_objects(raw["document_tokens"], "document_tokens")]
    else:
        listed = records.read_key(records.read_key(raw, "document", _KIND), "tokens", _KIND)
        tokens = [row["token"] for row in records.read_objects(listed, "document.tokens")]
    starts = accumulate((len(token) + 1 for token in tokens), initial=0)
    spans = [(start, start + len(token)) for start, token in zip(starts, tokens, strict=False)]
    return Document(" ".join(tokens), spans)


def read_answers(
    raw: records.RawRecord, locate: Callable[[Mapping[str, int]], records.Span]
) -> tuple[list[records.Span], list[records.Annotation]]:
    """Return the span of every long answer candidate, and the annotations with the first of several short answers.

    ``locate`` returns the span of an answer or candidate, in characters (``Document.chars``) or in bytes.
    """
    rows = records.read_objects(records.read_key(raw, "long_answer_candidates", _KIND), "long_answer_candidates")
    passages = [locate(row) for row in rows]
    annotations = []
    for annotation in records.read_objects(records.read_key(raw, "annotations", _KIND), "annotations"):
        # PrimeQA's base schema has one span per annotator.
        short = records.read_objects(annotation["short_answers"], "short_answers")
        index = annotation["long_answer"].get("candidate_index", -1)
        annotations.append(
            records.Annotation(
                locate(short[0]) if short else records.NO_SPAN,
                records.check_passage(index, len(passages), "candidate_index"),
                records.check_yes_no(annotation["yes_no_answer"]),
            )
        )
    return passages, annotations


def _has_document(entry: records.RawRecord) -> bool:
    """Return whether a record has a question and a document of the test files, which lack annotations."""
    return "question_text" in entry and bool({"document_text", "document_tokens"} & set(entry))


FORMAT = records.Format(
    "annotations, long_answer_candidates, a document in tokens",
    lambda entry: "context" not in entry and ("long_answer_candidates" in entry or _has_document(entry)),
    example,
    unanswered={"annotations": [], "long_answer_candidates": []},
)
