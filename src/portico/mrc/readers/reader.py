"""Questions of any known format as flat records, from files, data sets and the hub."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.mrc.readers.defects import Defects, InvalidRecord
from portico.mrc.readers.documents import Placed, entries, numbered
from portico.mrc.readers.files import open_text
from portico.mrc.readers.formats import format_named, format_of
from portico.mrc.readers.records import Example
from portico.mrc.readers.sources import language_of_name, paths_of, stored_dataset
from portico.mrc.readers.unique_ids import UniqueIds

_ID_KEYS = ("id", "example_id", "qid")


def read_examples(source: Any, *, format: str | None = None, skip_invalid: bool = False) -> list[Example]:
    """Read questions with their contexts and answers.

    Args:
        source: A path, a glob, a folder, or several of these; or a ``datasets.Dataset`` or other iterable of records.
            Files are UTF-8 JSON or JSON lines, plain or gzip-compressed.
        format: A name in :data:`~portico.mrc.readers.formats.FORMATS`; ``None`` recognises it by the first record of
            each file.
        skip_invalid: Leave unusable records out, with one warning a file, instead of raising.

    Returns:
        Records ``{"id", "title", "context", "question", "answers": {"text": [...], "answer_start": [...]}}`` in
        order. ``answer_start`` counts characters; a question without an answer has two empty lists. ``context`` is a
        text, or a list of them where a question has several. TyDi QA, Natural Questions and the base schema add
        ``language``, ``target`` (one entry an annotator) and ``passage_candidates``. Of files in several languages
        that share their ids, the language is put in front of the id.

    Raises:
        InputError: If a source cannot be read, is of no known format, holds no usable question or, unless skipped,
            holds an unusable record; the message names the source, the record and the cure.
    """
    if not _names_files(source):
        return _read(Defects("The data set", skip_invalid=skip_invalid), numbered(source), format, UniqueIds())
    paths = paths_of(source)
    languages = {language_of_name(path.name) for path in paths}
    examples: list[Example] = []
    ids = UniqueIds(with_language=len(languages - {None}) > 1)
    for path in paths:
        defects = Defects(path, skip_invalid=skip_invalid)
        dataset = stored_dataset(path)
        if dataset is not None:
            examples += _read(defects, numbered(dataset), format, ids)
            continue
        with open_text(path) as stream:
            examples += _read(defects, entries(stream, defects), format, ids, language_of_name(path.name))
    return examples


def read_squad(path: str | Path, *, skip_invalid: bool = False) -> list[Example]:
    """Read SQuAD v1.1 or v2.0, nested JSON or flat JSON (lines or array), told apart by its content.

    Args:
        path: As the `source` of :func:`read_examples`.
        skip_invalid: Leave unusable records out, with one warning, instead of raising.

    Returns:
        Records as :func:`read_examples` returns them. Other fields of a question are kept, except ``is_impossible``
        and ``plausible_answers``.

    Raises:
        InputError: As in :func:`read_examples`.
    """
    return read_examples(path, format="squad", skip_invalid=skip_invalid)


def has_unanswerable(examples: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a question has no answer, so that SQuAD v2.0 scoring applies."""
    return any(not example["answers"]["text"] for example in examples)


def _names_files(source: Any) -> bool:
    return isinstance(source, str | Path) or (
        isinstance(source, Sequence) and bool(source) and all(isinstance(one, str | Path) for one in source)
    )


def _read(
    defects: Defects, placed: Iterator[Placed], name: str | None, ids: UniqueIds, language: str | None = None
) -> list[Example]:
    """Return the usable examples among the entries of one source."""
    first = next(placed, None)
    if first is None:
        raise InputError(_why_no_examples(defects))
    one = format_named(name) if name is not None else format_of(first[1], defects.source)
    examples: list[Example] = []
    for place, entry in itertools.chain([first], placed):
        for place_of_question, raw in one.questions(place, entry, defects):
            where = _with_id(place_of_question, raw)
            try:
                example = one.example(raw)
                example = example if language is None else {**example, "language": language}
                examples.append(ids.claim(example, where))
            except InvalidRecord as error:
                defects.add(where, str(error))
            except (AttributeError, IndexError, KeyError, TypeError) as error:
                # Deep inside a record any field may be missing or of any type; what was met tells which.
                defects.add(where, f"not {name or 'of its format'}: {type(error).__name__} ({error}).")
    if not examples:
        raise InputError(_why_no_examples(defects))
    defects.warn()
    return examples


def _with_id(place: str, raw: Any) -> str:
    found = (raw.get(key) for key in _ID_KEYS) if isinstance(raw, Mapping) else ()
    identifier = next(filter(None, found), None)
    return f"{place}, id {identifier!r}" if identifier else place


def _why_no_examples(defects: Defects) -> str:
    if not defects.messages:
        return f"{defects.source}: the data set is empty; give a file that holds at least one question."
    return (
        f"{defects.source}: none of its {len(defects.messages)} record(s) can be used, the first because of "
        f"{defects.messages[0]} Correct the file."
    )
