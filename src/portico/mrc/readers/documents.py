"""The entries of a JSON document or of JSON lines, as a stream of `(place, entry)` pairs.

A document is an array of entries, or an object that holds it under `data`; otherwise there is one entry a line.
A place says in words where an entry stands, for error messages.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from portico.errors import InputError
from portico.mrc.readers.defects import Defects
from portico.mrc.readers.wording import found, shorten

Placed = tuple[str, Any]


def entries(stream: TextIO, defects: Defects) -> Iterator[Placed]:
    """Yield every entry of the file, not yet validated.

    Raises:
        InputError: If the file is not JSON, or JSON without entries; for a single defective line only if `defects`
            does not skip.
    """
    head = ""
    for line in stream:
        head += line
        if line.strip():
            break
    try:
        value = json.loads(head) if head.strip() else None
    except json.JSONDecodeError:
        value = None  # a document over several lines
    if isinstance(value, Mapping) and "data" not in value:
        return _lines(head, stream, defects)
    tail = stream.read()
    if value is None or tail.strip():
        value = _parse_document(head + tail, defects)
    return _entries_of_document(value, defects)


def _lines(head: str, stream: TextIO, defects: Defects) -> Iterator[Placed]:
    lines = itertools.chain(head.rstrip("\n").split("\n"), stream)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line.rstrip("\n"))
        except json.JSONDecodeError as error:
            defects.add(f"line {number}, column {error.colno}", f"not JSON ({error.msg}).")


def _parse_document(text: str, defects: Defects) -> Any:
    if not text.strip():
        raise InputError(f"{defects.source}: the file is empty; give questions as JSON or JSON lines.")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        there = shorten(text[error.pos :].partition("\n")[0]) if error.pos < len(text) else "the end of the file"
        raise InputError(
            f"{defects.source}, line {error.lineno}, column {error.colno}: "
            f"not JSON ({error.msg}; there stands {there}). "
            "Give a JSON document, or JSON lines with one whole record on each line."
        ) from error


def _entries_of_document(document: Any, defects: Defects) -> Iterator[Placed]:
    listed = document.get("data", [document]) if isinstance(document, Mapping) else document
    if not isinstance(listed, list):
        raise InputError(
            f"{defects.source}: not a data set: `data`, or the top level, must be a list, but {found(listed)}; give "
            '{"data": [...]} as SQuAD has it, a JSON array of flat records, or JSON lines.'
        )
    for number, entry in enumerate(listed, start=1):
        is_article = isinstance(entry, Mapping) and "paragraphs" in entry
        yield f"{'article' if is_article else 'record'} {number}", entry


def numbered(records: Iterable[Any]) -> Iterator[Placed]:
    """Yield the records of a data set with their places."""
    return ((f"record {number}", record) for number, record in enumerate(records, start=1))
