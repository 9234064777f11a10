"""The layouts a SQuAD file comes in, each walked as a stream of `(place, raw record)` pairs.

Nested: `{"data": [article]}` with article = `{"title", "paragraphs": [{"context", "qas": [question]}]}`.
Flat: one JSON record a line, a JSON array of records, or `{"data": [record]}`.
A place says in words where a record stands, for error messages.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from portico.errors import InputError
from portico.mrc.squad.defects import Defects
from portico.mrc.squad.wording import found, shorten

Placed = tuple[str, Any]


def raw_records(stream: TextIO, defects: Defects) -> Iterator[Placed]:
    """Yield every question of the file with its context and title, not yet validated.

    Raises:
        InputError: If the file is not JSON, or JSON without questions; for a single defective article, paragraph or
            line only if `defects` does not skip.
    """
    for place, entry in _entries(stream, defects):
        if isinstance(entry, Mapping) and "paragraphs" in entry:
            yield from _questions_of_article(place, entry, defects)
        else:
            yield place, entry


def _entries(stream: TextIO, defects: Defects) -> Iterator[Placed]:
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
        raise InputError(f"{defects.path}: the file is empty; give SQuAD JSON or JSON lines.")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        there = shorten(text[error.pos :].partition("\n")[0]) if error.pos < len(text) else "the end of the file"
        raise InputError(
            f"{defects.path}, line {error.lineno}, column {error.colno}: "
            f"not JSON ({error.msg}; there stands {there}). "
            "Give SQuAD JSON, or JSON lines with one whole record on each line."
        ) from error


def _entries_of_document(document: Any, defects: Defects) -> Iterator[Placed]:
    entries = document.get("data", [document]) if isinstance(document, Mapping) else document
    if not isinstance(entries, list):
        raise InputError(
            f"{defects.path}: not SQuAD: `data`, or the top level, must be a list, but {found(entries)}; give "
            '{"data": [...]} as SQuAD has it, a JSON array of flat records, or JSON lines.'
        )
    for number, entry in enumerate(entries, start=1):
        is_article = isinstance(entry, Mapping) and "paragraphs" in entry
        yield f"{'article' if is_article else 'record'} {number}", entry


def _questions_of_article(place: str, article: Mapping[str, Any], defects: Defects) -> Iterator[Placed]:
    title = article.get("title")
    place = f"{place} ({shorten(title)})" if title else place
    for number, paragraph in _listed(article, "paragraphs", place, defects):
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
