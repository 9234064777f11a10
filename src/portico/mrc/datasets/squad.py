"""SQuAD v1.1 and v2.0, nested and flat; XQuAD and MLQA have the same form.

Nested: an entry is an article ``{"title", "paragraphs": [{"context", "qas": [question]}]}``, or one of its paragraphs.
Flat: it is a question.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from portico.data.defects import Defects, InvalidRecord, Placed, describe, shorten
from portico.mrc.datasets import records
from portico.mrc.datasets.examples import Example
from portico.mrc.datasets.values import ANSWER_FORMS, answer_columns, check_flag

_KIND = "a SQuAD question has id, context, question, answers"
_PARSED = frozenset({"id", "context", "question", "title", "answers", "is_impossible", "plausible_answers"})
_OF_BASE_SCHEMA = frozenset({"target", "passage_candidates"})  # in an example they are answers, here unknown fields
_LABELS = ("language", "question_type")
_MAX_SHOWN_POSITIONS = 3
# xquad.es.json; dev-context-es-question-de.json, where the context, and so the answer, is Spanish.
_LANGUAGE_IN_NAME = re.compile(r"^(?:xquad\.|(?:dev|test)-context-)([a-z]{2})(?:\.|-question-)")


def language_of_file(name: str) -> str | None:
    """Return the language of the contexts in a file of XQuAD or MLQA; ``None`` for other file names."""
    match = _LANGUAGE_IN_NAME.match(name)
    return match and match[1]


def language_of_configuration(name: str) -> str | None:
    """Return the language of the contexts in a configuration of XQuAD or MLQA on the hub, such as ``mlqa.zh.en``."""
    family, _, languages = name.partition(".")
    return languages[:2] if family in ("xquad", "mlqa", "MLQA") else None


def questions(place: str, entry: object, defects: Defects) -> Iterator[Placed]:
    """Yield the questions of an entry with their context and title, not yet validated."""
    if isinstance(entry, Mapping) and {"context", "qas"} <= set(entry):  # a paragraph without an article
        yield from records.questions_of_passage(place, entry, defects, "SQuAD", title=entry.get("title"))
        return
    if not isinstance(entry, Mapping) or "paragraphs" not in entry or {"context", "question"} <= set(entry):
        yield place, entry
        return
    title = entry.get("title")
    place = f"{place} ({shorten(title)})" if title else place
    for number, paragraph in records.children(entry, "paragraphs", place, defects, "SQuAD"):
        yield from records.questions_of_passage(
            f"{place}, paragraph {number}", paragraph, defects, "SQuAD", title=title
        )


def example(raw: records.RawRecord) -> Example:
    """Parse a question; fields that are not SQuAD's are kept, and every answer must be found at its offset."""
    identifier, context, question = (records.read_key(raw, key, _KIND) for key in ("id", "context", "question"))
    record: Example = {
        "id": records.check_id("id", identifier),
        "title": records.check_label("title", raw.get("title")),
        "context": records.check_text("context", context),
        "question": records.check_text("question", question),
        "answers": check_answers(raw),
    }
    for text, start in zip(*record["answers"].values(), strict=True):
        _check_answer(context, text, start)
    labels = {key: records.check_label(key, raw[key]) for key in _LABELS if key in raw}
    kept = {key: value for key, value in raw.items() if key not in _PARSED | _OF_BASE_SCHEMA}
    return {**record, **kept, **labels}


def check_answers(raw: records.RawRecord) -> dict[str, list[Any]]:
    """Return ``answers`` as two lists of the same length, whose entries are not yet validated."""
    impossible = check_flag("is_impossible", raw.get("is_impossible"))
    if impossible is None and raw.get("answers") is None:
        raise InvalidRecord(f"`answers` must be {ANSWER_FORMS}; got null.")
    texts, starts = answer_columns(raw.get("answers"))
    if impossible is not None and impossible == bool(texts):
        raise InvalidRecord(
            f"`is_impossible` is {str(impossible).lower()}, but `answers` holds {len(texts)}; an impossible question "
            "has no answers, any other at least one."
        )
    return {"text": texts, "answer_start": starts}


def _check_answer(context: str, text: object, start: object) -> None:
    if not isinstance(text, str) or not text:
        raise InvalidRecord(f"`text` of an answer must be a non-empty string; got {describe(text)}.")
    if isinstance(start, bool) or not isinstance(start, int):
        raise InvalidRecord(f"`answer_start` of the answer {shorten(text)} must be an int; got {describe(start)}.")
    if start >= 0 and context.startswith(text, start):
        return
    if 0 <= start < len(context):
        there = f"the context has {shorten(context[start : start + len(text)])} there"
    else:
        there = f"the context has the characters 0 to {len(context) - 1}"
    positions = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    nearest = sorted(positions, key=lambda position: abs(position - start))[:_MAX_SHOWN_POSITIONS]
    occurs = f"occurs at {', '.join(map(str, nearest))}" if nearest else "does not occur in the context"
    raise InvalidRecord(
        f"`answer_start` {shorten(start)} of the answer {shorten(text)} is wrong: {there}, and the "
        f"answer {occurs}. Offsets count characters, from 0."
    )


FORMAT = records.Format(
    "articles with paragraphs, paragraphs with context and qas, or id, context, question, answers",
    lambda entry: "paragraphs" in entry or {"context", "question"} <= set(entry) or {"context", "qas"} <= set(entry),
    example,
    questions,
)
