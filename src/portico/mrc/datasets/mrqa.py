"""MRQA 2019, as JSON lines of one passage with its questions and as flat records of the hub.

Character spans include their last character.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from portico.mrc.datasets.examples import Example
from portico.mrc.datasets.records import (
    Annotation,
    Defects,
    Format,
    InvalidRecord,
    Placed,
    Span,
    as_answers,
    as_objects,
    checked_id,
    checked_text,
    describe,
    required,
    shorten,
)

_KIND = "an MRQA question has qid, context, question, detected_answers"


def questions(place: str, entry: Any, defects: Defects) -> Iterator[Placed]:
    """Yield the questions of a passage with their context, not yet validated; none for the header line."""
    if not isinstance(entry, Mapping) or "detected_answers" in entry:
        yield place, entry
    elif isinstance(entry.get("qas"), list):
        for number, question in enumerate(entry["qas"], start=1):
            context = {"context": entry.get("context")}
            yield f"{place}, question {number}", {**question, **context} if isinstance(question, Mapping) else question
    elif set(entry) != {"header"}:
        defects.add(place, f"not MRQA: expected a list `qas`; got {describe(entry)}.")


def example(raw: Any) -> Example:
    """Parse a question with the spans of all detected answers."""
    identifier, context, question, detected = (
        required(raw, key, _KIND) for key in ("qid", "context", "question", "detected_answers")
    )
    context = checked_text("context", context)
    spans = [
        _exclusive_span(context, answer["text"], start, last)
        for answer in as_objects(detected, "detected_answers")
        for start, last in char_spans(answer)
    ]
    record = {
        "id": checked_id("qid", identifier),
        "title": "",
        "context": context,
        "question": checked_text("question", question),
        "answers": as_answers(context, [Annotation(span) for span in spans]),
    }
    if "subset" in raw:
        record["subset"] = raw["subset"]
    return record


def char_spans(answer: Mapping[str, Any]) -> list[Span]:
    """Return the first and last character of each occurrence of an answer, in either form of the data."""
    spans = answer["char_spans"]
    if isinstance(spans, Mapping):
        return list(zip(spans["start"], spans["end"], strict=True))
    return [(span["start"], span["end"]) if isinstance(span, Mapping) else (span[0], span[1]) for span in spans]


def _exclusive_span(context: str, text: str, start: int, last: int) -> Span:
    if not 0 <= start <= last < len(context):
        raise InvalidRecord(
            f"`char_spans` of the answer {shorten(text)} is {start} to {last}, but the context has the characters 0 "
            f"to {len(context) - 1}."
        )
    return start, last + 1  # MRQA 2019's `char_spans` include the last character


FORMAT = Format(
    "context with qas, or qid, context, question, detected_answers",
    lambda entry: "detected_answers" in entry or {"context", "qas"} <= set(entry) or set(entry) == {"header"},
    example,
    questions,
)
