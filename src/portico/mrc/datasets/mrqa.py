"""MRQA 2019, as JSON lines of one passage with its questions and as flat records of the hub.

Character spans include their last character.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from portico.data.defects import Defects, InvalidRecord, Placed, shorten
from portico.mrc.datasets import records
from portico.mrc.datasets.examples import Example

_KIND = "an MRQA question has qid, context, question, detected_answers"


def questions(place: str, entry: object, defects: Defects) -> Iterator[Placed]:
    """Yield the questions of a passage with their context, not yet validated; none for the header line."""
    if not isinstance(entry, Mapping) or "detected_answers" in entry:
        yield place, entry
    elif set(entry) != {"header"}:
        yield from records.questions_of_passage(place, entry, defects, "MRQA")


def example(raw: records.RawRecord) -> Example:
    """Parse a question with the spans of all detected answers."""
    identifier, context, question, detected = (
        records.read_key(raw, key, _KIND) for key in ("qid", "context", "question", "detected_answers")
    )
    context = records.check_text("context", context)
    annotations = []
    for answer in records.read_objects(detected, "detected_answers"):
        for start, last in char_spans(answer):
            if not 0 <= start <= last < len(context):
                shown = " to ".join(map(shorten, (start, last)))
                raise InvalidRecord(
                    f"`char_spans` of the answer {shorten(answer['text'])} is {shown}, but the context has "
                    f"the characters 0 to {len(context) - 1}."
                )
            # MRQA 2019's `char_spans` include the last character.
            annotations.append(records.Annotation((start, last + 1)))
    record = {
        "id": records.check_id("qid", identifier),
        "title": "",
        "context": context,
        "question": records.check_text("question", question),
        "answers": records.build_answers(context, annotations),
    }
    if "subset" in raw:
        record["subset"] = records.check_label("subset", raw["subset"])
    return record


def char_spans(answer: Mapping[str, Any]) -> list[records.Span]:
    """Return the first and last character of each occurrence of an answer, in either form of the data."""
    spans = answer["char_spans"]
    if isinstance(spans, Mapping) or any(isinstance(span, Mapping) for span in spans):
        spans = [(span["start"], span["end"]) for span in records.read_objects(spans, "char_spans")]
    return [(_character(start), _character(last)) for start, last, *_ in spans]


def _character(value: object) -> int:
    return records.check_position(value, "char_spans")


def _is_question(entry: object) -> bool:
    # A question of SQuAD may have a field of its own with that name.
    return isinstance(entry, Mapping) and "detected_answers" in entry and not {"id", "answers"} <= set(entry)


def _is_passage(entry: records.RawRecord) -> bool:
    """Return whether a record is a passage of MRQA; a paragraph of SQuAD has the same two fields."""
    if not {"context", "qas"} <= set(entry):
        return False
    questions = entry["qas"]
    first = questions[0] if isinstance(questions, list) and questions else None
    return not isinstance(first, Mapping) or "qid" in first or _is_question(first)


FORMAT = records.Format(
    "context with qas, or qid, context, question, detected_answers",
    lambda entry: _is_question(entry) or _is_passage(entry) or set(entry) == {"header"},
    example,
    questions,
)
