"""Generative records in the manner of ELI5: a question, retrieved passages, answers that stand in none of them."""

from collections.abc import Mapping
from typing import Any

from portico.mrc.readers.defects import InvalidRecord
from portico.mrc.readers.records import Example, checked_id, checked_text, required
from portico.mrc.readers.wording import found

_WHAT = "a record for fusion-in-decoder; it has id, input, output, passages"


def is_fid(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry looks like ELI5 with passages."""
    return {"input", "passages"} <= set(entry)


def example(raw: Any) -> Example:
    """Return the record; its answers have -1 for a start, because they are no spans.

    Raises:
        InvalidRecord: If a field is missing or wrong.
    """
    identifier, question, passages = (required(raw, key, _WHAT) for key in ("id", "input", "passages"))
    if not isinstance(passages, list) or not passages:
        raise InvalidRecord(f"`passages` must be a list of one or more passages, but {found(passages)}.")
    texts = [answer["answer"] for answer in raw.get("output") or [] if answer.get("answer")]
    return {
        "id": checked_id("id", identifier),
        "title": "",
        "context": [passage_text(passage) for passage in passages],
        "question": checked_text("input", question),
        "answers": {"text": texts, "answer_start": [-1] * len(texts)},
        "input": question,
        "output": raw.get("output") or [],
        "passages": passages,
    }


def passage_text(passage: Any) -> str:
    """Return the text of a passage, its title in front if it has one.

    Raises:
        InvalidRecord: If it has no text.
    """
    if isinstance(passage, str):
        return checked_text("passages", passage)
    text = checked_text("passages", required(passage, "text", "a passage; it has text and perhaps title"))
    title = passage.get("title")
    return f"{title} {text}" if title else text
