"""SQuAD v1.1 and v2.0, nested and flat; also XQuAD and MLQA, which have the same form.

Nested: an entry is an article `{"title", "paragraphs": [{"context", "qas": [question]}]}`. Flat: it is a question.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from portico.mrc.readers.defects import Defects, InvalidRecord
from portico.mrc.readers.documents import Placed
from portico.mrc.readers.records import Example, checked_id, checked_text, required
from portico.mrc.readers.wording import found, shorten

_WHAT = "a SQuAD question; it has id, context, question, answers"
_REPLACED = frozenset({"id", "context", "question", "title", "answers", "is_impossible", "plausible_answers"})
_SHOWN_POSITIONS = 3


def is_squad(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry looks like an article or a question of SQuAD."""
    return "paragraphs" in entry or {"context", "question"} <= set(entry)


def questions(place: str, entry: Any, defects: Defects) -> Iterator[Placed]:
    """Yield the questions of an entry with their context and title, not yet validated.

    Raises:
        InputError: For a defective article or paragraph, if `defects` does not skip.
    """
    if not isinstance(entry, Mapping) or "paragraphs" not in entry:
        yield place, entry
        return
    title = entry.get("title")
    place = f"{place} ({shorten(title)})" if title else place
    for number, paragraph in _listed(entry, "paragraphs", place, defects):
        place_of_paragraph = f"{place}, paragraph {number}"
        for question_number, question in _listed(paragraph, "qas", place_of_paragraph, defects):
            raw = {**question, "title": title} if isinstance(question, Mapping) else question
            if isinstance(raw, dict) and "context" in paragraph:
                raw["context"] = paragraph["context"]
            yield f"{place_of_paragraph}, question {question_number}", raw


def _listed(parent: Any, key: str, place: str, defects: Defects) -> Iterable[tuple[int, Any]]:
    children = parent.get(key) if isinstance(parent, Mapping) else None
    if isinstance(children, list):
        return enumerate(children, start=1)
    what = f"under `{key}` {found(children)}" if isinstance(parent, Mapping) and key in parent else found(parent)
    defects.add(place, f"not SQuAD: a list `{key}` is wanted, but {what}.")
    return ()


def example(raw: Any) -> Example:
    """Return the record in flat form: `id`, `title`, `context`, `question`, `answers`, then its other fields.

    Args:
        raw: A decoded JSON object. `answers` may be `{"text": [...], "answer_start": [...]}` or a list of
            `{"text", "answer_start"}`; an `id` may be a string or an integer.

    Raises:
        InvalidRecord: If a field is missing or of the wrong type, or an answer does not stand at its offset.
    """
    identifier, context, question = (required(raw, key, _WHAT) for key in ("id", "context", "question"))
    record: Example = {
        "id": checked_id("id", identifier),
        "title": str(raw.get("title") or ""),
        "context": checked_text("context", context),
        "question": checked_text("question", question),
        "answers": _flat_answers(raw),
    }
    for text, start in zip(*record["answers"].values(), strict=True):
        _check_answer(context, text, start)
    return {**record, **{key: value for key, value in raw.items() if key not in _REPLACED}}


def _flat_answers(raw: Mapping[str, Any]) -> dict[str, list[Any]]:
    impossible = raw.get("is_impossible")
    answers = raw.get("answers", [] if impossible is True else None)
    texts: Any
    starts: Any
    if isinstance(answers, list) and all(isinstance(answer, Mapping) for answer in answers):
        texts, starts = ([answer.get(key) for answer in answers] for key in ("text", "answer_start"))
    elif isinstance(answers, Mapping):
        texts, starts = answers.get("text"), answers.get("answer_start")
    else:
        texts, starts = None, None
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise InvalidRecord(
            '`answers` must be {"text": [...], "answer_start": [...]} with two lists of one length, or a list of '
            f'{{"text", "answer_start"}}, both empty for a question without an answer, but {found(answers)}.'
        )
    if isinstance(impossible, bool) and impossible == bool(texts):
        raise InvalidRecord(
            f"`is_impossible` is {str(impossible).lower()}, but `answers` holds {len(texts)}; an impossible question "
            "has none and every other has one or more."
        )
    return {"text": list(texts), "answer_start": list(starts)}


def _check_answer(context: str, text: Any, start: Any) -> None:
    if not isinstance(text, str) or not text:
        raise InvalidRecord(f"`text` of an answer must be a non-empty string, but {found(text)}.")
    if isinstance(start, bool) or not isinstance(start, int):
        raise InvalidRecord(f"`answer_start` of the answer {shorten(text)} must be an integer, but {found(start)}.")
    if start < 0 or not context.startswith(text, start):
        raise InvalidRecord(
            f"`answer_start` {start} of the answer {shorten(text)} is wrong: {_what_stands(context, text, start)}, "
            f"and the text {_where_else(context, text, start)}. It counts characters of the context, from 0."
        )


def _what_stands(context: str, text: str, start: int) -> str:
    if not 0 <= start < len(context):
        return f"the context has the characters 0 to {len(context) - 1}"
    return f"there stands {shorten(context[start : start + len(text)])}"


def _where_else(context: str, text: str, start: int) -> str:
    positions = []
    position = context.find(text)
    while position >= 0:
        positions.append(position)
        position = context.find(text, position + 1)
    if not positions:
        return "occurs nowhere in the context"
    nearest = sorted(positions, key=lambda found_at: abs(found_at - start))[:_SHOWN_POSITIONS]
    return f"occurs at {', '.join(map(str, nearest))}"
