"""What every reader makes, and what every reader checks."""

from collections.abc import Mapping
from typing import Any

from portico.mrc.readers.defects import InvalidRecord
from portico.mrc.readers.wording import found

Example = dict[str, Any]
"""One question: `id`, `title`, `context` (a text, or a list of texts), `question`, `answers`, and for some formats
`language`, `target`, `passage_candidates`; further fields are the format's own."""


def checked_text(key: str, value: Any) -> str:
    """Return `value`, a text that is not blank.

    Raises:
        InvalidRecord: If it is none, or no valid Unicode.
    """
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
    return value


def checked_id(key: str, value: Any) -> str:
    """Return an identifier, a string or an integer, as a string.

    Raises:
        InvalidRecord: If it is neither.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidRecord(f"`{key}` must be a string, but {found(value)}.")
    return str(value)


def required(raw: Any, key: str, what: str) -> Any:
    """Return a field of an object.

    Args:
        raw: What should be an object with this field.
        key: Name of the field.
        what: What `raw` should be, for the message: ``"a SQuAD question; it has id, context, question, answers"``.

    Raises:
        InvalidRecord: If there is no such field.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRecord(f"a record must be a JSON object, but {found(raw)}.")
    if key not in raw:
        kind, _, fields = what.partition(";")
        raise InvalidRecord(f"not {kind}: `{key}` is missing, {found(raw)};{fields}.")
    return raw[key]


def as_objects(value: Any, key: str) -> list[Mapping[str, Any]]:
    """Return a list of objects, also from one object of lists, which is how `datasets` stores it.

    Raises:
        InvalidRecord: If it is neither.
    """
    if isinstance(value, Mapping) and all(isinstance(column, list) for column in value.values()):
        if len({len(column) for column in value.values()}) > 1:
            raise InvalidRecord(f"the lists under `{key}` must be of one length, but {found(value)}.")
        return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        return value
    raise InvalidRecord(f"`{key}` must be a list of objects, but {found(value)}.")
