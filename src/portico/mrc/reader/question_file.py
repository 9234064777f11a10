"""Questions to be answered, from a file."""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.mrc.datasets.reader import FORMATS
from portico.mrc.datasets.records import InvalidRecord
from portico.mrc.reader.windows import Contexts

_IDS = ("id", "example_id", "qid")
_FORMS = (
    "SQuAD JSON, or JSON lines or an array of records with question and context, or of TyDi QA, Natural Questions or "
    "ELI5 with passages"
)


@dataclass(frozen=True)
class AskedQuestion:
    """A question of a file.

    Attributes:
        id: Its identifier; by default its number in the file, from 0.
        question: The question.
        context: A text, or several, to look for its answer in.
    """

    id: str
    question: str
    context: Contexts


def read_questions(path: str | Path) -> list[AskedQuestion]:
    """Read the questions of a file; answers may be there or not and are not read.

    Args:
        path: SQuAD JSON, or JSON lines or an array of records with ``question``, ``context`` (a text or a list of
            texts) and perhaps ``id``, or of TyDi QA, Natural Questions or ELI5 with passages; UTF-8, plain or
            gzip-compressed.

    Raises:
        InputError: If the file cannot be read, or a record has no question or no context; names file and record.
    """
    path = Path(path)
    questions = [_question(path, number, record) for number, record in enumerate(_flat(_document(path)))]
    if not questions:
        raise InputError(f"{path}: the file holds no questions; give {_FORMS}.")
    return questions


def _document(path: Path) -> Any:
    try:
        text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); give {_FORMS}, in UTF-8.") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [_parsed(path, number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {number}, column {error.colno}: not JSON ({error.msg}); give {_FORMS}."
        ) from error


def _flat(document: Any) -> Iterator[Any]:
    """Yield the questions of a document with their contexts, however deep they lie."""
    if isinstance(document, list):
        for entry in document:
            yield from _flat(entry)
    elif isinstance(document, Mapping) and isinstance(nested := _nested(document), list):
        shared = {key: document[key] for key in ("context",) if key in document}
        yield from _flat([{**shared, **entry} if isinstance(entry, Mapping) else entry for entry in nested])
    else:
        yield document


def _nested(document: Mapping[str, Any]) -> Any:
    return next((document[key] for key in ("data", "paragraphs", "qas") if key in document), None)


def _question(path: Path, number: int, record: Any) -> AskedQuestion:
    record = _read_as_data(path, number, record)
    missing = [key for key in ("question", "context") if not isinstance(record, Mapping) or not record.get(key)]
    if missing:
        raise InputError(f"{path}, question {number}: there is no `{missing[0]}`; give {_FORMS}.")
    identifier = next((record[key] for key in _IDS if record.get(key) is not None), number)
    return AskedQuestion(str(identifier), record["question"], record["context"])


def _read_as_data(path: Path, number: int, record: Any) -> Any:
    """Return a record of a format that calls question and context otherwise as an example; others as they are."""
    if not isinstance(record, Mapping) or ("question" in record and "context" in record):
        return record
    known = next((one for one in FORMATS.values() if one.is_like(record)), None)
    if known is None:
        return record
    try:
        return known.example(record)
    except InvalidRecord as error:
        raise InputError(f"{path}, question {number}: {error} Give {_FORMS}.") from error
