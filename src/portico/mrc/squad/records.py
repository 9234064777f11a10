"""One raw SQuAD question checked and brought into the flat form."""

from collections.abc import Mapping
from typing import Any

from portico.mrc.squad.wording import found, shorten

Example = dict[str, Any]

_REQUIRED = ("id", "context", "question")
_REPLACED = frozenset({*_REQUIRED, "title", "answers", "is_impossible", "plausible_answers"})
_SHOWN_POSITIONS = 3


class InvalidRecord(ValueError):
    """One record cannot be used; the message says why, without the place."""


def flat_record(raw: Any) -> Example:
    """Return the record in flat form: `id`, `title`, `context`, `question`, `answers`, then its other fields.

    Args:
        raw: A decoded JSON object. `answers` may be `{"text": [...], "answer_start": [...]}` or a list of
            `{"text", "answer_start"}`; an `id` may be a string or an integer.

    Raises:
        InvalidRecord: If a field is missing or of the wrong type, or an answer does not stand at its offset.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRecord(f"a record must be a JSON object, but {found(raw)}.")
    _check_required(raw)
    answers = _flat_answers(raw)
    for text, start in zip(answers["text"], answers["answer_start"], strict=True):
        _check_answer(raw["context"], text, start)
    return {
        "id": str(raw["id"]),
        "title": str(raw.get("title") or ""),
        "context": raw["context"],
        "question": raw["question"],
        "answers": answers,
        **{key: value for key, value in raw.items() if key not in _REPLACED},
    }


def _check_required(raw: Mapping[str, Any]) -> None:
    for key in _REQUIRED:
        if key not in raw:
            raise InvalidRecord(
                f"not a SQuAD question: `{key}` is missing, {found(raw)}; it has id, context, question, answers."
            )
    if isinstance(raw["id"], bool) or not isinstance(raw["id"], str | int):
        raise InvalidRecord(f"`id` must be a string, but {found(raw['id'])}.")
    for key in ("context", "question"):
        _check_text(key, raw[key])


def _check_text(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidRecord(f"`{key}` must be a string, but {found(value)}.")
    if not value.strip():
        raise InvalidRecord(f"`{key}` is empty; every question needs a text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(
            f"`{key}` holds half of a surrogate pair at character {error.start}, which is no valid Unicode text."
        ) from error


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
