"""Reads questions of any known format from files, datasets and the hub, as flat examples.

To add a format, write a module with a ``Format`` and enter it in ``FORMATS``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from portico.data.defects import Defects, InvalidRecord, Placed, describe, shorten
from portico.data.sources import (
    MAX_GZIP_RATIO,
    csv_rows,
    entries,
    load_hub_split,
    number_records,
    open_text,
    parquet_rows,
    paths_of,
    stored_dataset,
)
from portico.errors import InputError
from portico.mrc.datasets import base_schema, fid, mrqa, natural_questions, squad, tydi
from portico.mrc.datasets.examples import Example
from portico.mrc.datasets.records import Format, RawRecord, num_lost_questions
from portico.mrc.datasets.values import as_json

# The order matters: a question of MRQA or of the base schema has the fields of a SQuAD question too.
FORMATS: Mapping[str, Format] = {
    "tydiqa": tydi.FORMAT,
    "natural_questions": natural_questions.FORMAT,
    "mrqa": mrqa.FORMAT,
    "fid": fid.FORMAT,
    "base": base_schema.FORMAT,
    "squad": squad.FORMAT,
    "xquad": squad.FORMAT,
    "mlqa": squad.FORMAT,
}
"""Formats by name, in the order in which they are tried by ``read_examples``."""

Source: TypeAlias = str | Path | Iterable[str | Path] | Iterable[RawRecord]
"""A path, a glob, a folder, or several of these; or a ``datasets.Dataset`` or other iterable of records."""

_NOT_READ = (".arrow", ".xlsx")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_ID_KEYS = ("id", "example_id", "qid")


class _UniqueIds:
    """Adds missing identifiers, optionally prefixes them with the language, and by default rejects duplicates."""

    def __init__(self, *, with_language: bool = False, may_repeat: bool = False) -> None:
        self._with_language = with_language
        self._may_repeat = may_repeat
        self._places: dict[str, str] = {}
        self._num_claimed = 0

    def claim(self, example: Example, place: str) -> Example:
        """Return the example with its identifier, by default its number."""
        identifier = example.get("id", str(self._num_claimed))
        if self._with_language and "language" in example:
            identifier = f"{example['language']}:{identifier}"
        first = self._places.setdefault(identifier, place)
        if first is not place and not self._may_repeat:
            raise InvalidRecord(f"duplicate id, first used by {first}; predictions are stored by id.")
        self._num_claimed += 1
        return {**example, "id": identifier} if "id" in example else {"id": identifier, **example}


def read_examples(
    source: Source,
    *,
    format: str | None = None,
    skip_invalid: bool = False,
    max_gzip_ratio: float = MAX_GZIP_RATIO,
    ids_may_repeat: bool = False,
) -> list[Example]:
    """Read questions with their contexts and answers.

    Args:
        source: A path, a glob, a folder, or several of these; or a ``datasets.Dataset``, a ``DataFrame`` or another
            iterable of records.
            Files are JSON, JSON lines, CSV or tab-separated, in UTF-8, plain or gzip-compressed, or parquet. In a cell
            of CSV, ``answers`` is JSON or a literal of Python.
        format: A name in :data:`~portico.mrc.datasets.reader.FORMATS`; ``None`` detects it from the first record of
            each file.
        skip_invalid: Skip invalid records, with one warning per file, instead of raising.
        max_gzip_ratio: How many times as large as a gzip file its content may be; 64 MiB are always read.
        ids_may_repeat: Accept several questions with one id. They can be trained on, but not answered, since answers
            are stored by id.

    Returns:
        Records ``{"id", "title", "context", "question", "answers": {"text": [...], "answer_start": [...]}}`` in
        order. ``answer_start`` counts characters; a question without an answer has two empty lists. ``context`` is a
        string, or a list of strings if the question has several. TyDi QA, Natural Questions and the base schema add
        ``language``, ``target`` (one entry per annotator) and ``passage_candidates``. If files of several languages
        are read, identifiers are prefixed with the language, because translations share them.

    Raises:
        InputError: If a source cannot be read, has an unknown format, has no valid question, or has an invalid record
            that is not skipped. The message names the source and the record.
    """
    form = None if format is None else format_named(format)
    return _read_all(source, form, skip_invalid, max_gzip_ratio, ids_may_repeat)


def read_questions(
    source: Source,
    *,
    format: str | None = None,
    skip_invalid: bool = False,
    max_gzip_ratio: float = MAX_GZIP_RATIO,
) -> list[Example]:
    """Read questions with their contexts only, in the formats of :func:`read_examples` or without answers.

    A record has ``question``, ``context`` (a string or a list of strings) and optionally ``id``, ``example_id`` or
    ``qid``, by default its number; or it is one of TyDi QA, Natural Questions or ELI5. For the arguments and the
    errors see :func:`read_examples`.

    Returns:
        Records ``{"id", "question", "context"}`` in order.
    """
    named = None if format is None else format_named(format)
    return _read_all(source, _question_format(named), skip_invalid, max_gzip_ratio)


def _question_format(named: Format | None) -> Format:
    """Return a format that ignores the answers of records: the named format, or else the format of each record."""

    def questions(place: str, entry: object, defects: Defects) -> Iterator[Placed]:
        known = named or format_like(entry)
        return iter([(place, entry)]) if known is None else known.questions(place, entry, defects)

    def example(raw: RawRecord) -> Example:
        known = named or format_like(raw)
        # A record of a format that names question and context differently is read as an example of that format.
        if known is None or (isinstance(raw, Mapping) and {"question", "context"} <= set(raw)):
            return base_schema.question(raw)
        parsed = known.example({**raw, **known.unanswered} if isinstance(raw, Mapping) else raw)
        return {key: parsed[key] for key in ("id", "question", "context") if key in parsed}

    return Format("question, context, and optionally id", lambda entry: True, example, questions)


def _read_all(
    source: Source, form: Format | None, skip_invalid: bool, max_gzip_ratio: float, ids_may_repeat: bool = False
) -> list[Example]:
    """Return the examples of a source in the given format; by default the first record of a file shows the format."""
    names = [source] if isinstance(source, str | Path) else source
    if not (isinstance(names, Sequence) and names and all(isinstance(name, str | Path) for name in names)):
        rows: Any = names
        if hasattr(rows, "iloc") and hasattr(rows, "to_dict"):  # a DataFrame, which would yield its columns' names
            rows = rows.to_dict("records")
        ids = _UniqueIds(may_repeat=ids_may_repeat)
        return _read(Defects("The dataset", skip_invalid=skip_invalid), _convert(number_records(rows)), form, ids)
    paths = paths_of(names)
    for path in paths:
        if path.suffix in _NOT_READ:
            raise InputError(
                f"{path}: questions are read from JSON, JSON lines, CSV or parquet, not from {path.suffix}; write "
                'objects such as {"question": ..., "context": ..., "answers": {"text": ["..."], "answer_start": [0]}}.'
            )
    languages = {squad.language_of_file(path.name) for path in paths}
    examples: list[Example] = []
    ids = _UniqueIds(with_language=len(languages - {None}) > 1, may_repeat=ids_may_repeat)
    for path in paths:
        defects = Defects(path, skip_invalid=skip_invalid)
        with stored_dataset(path) as dataset:
            if dataset is not None:
                examples += _read(defects, number_records(dataset), form, ids)
                continue
        language = squad.language_of_file(path.name)
        if path.suffix == ".parquet":
            examples += _read(defects, _convert(parquet_rows(path)), form, ids, language)
            continue
        with open_text(path, max_gzip_ratio) as stream:
            separator = _SEPARATORS.get(Path(path.name.removesuffix(".gz")).suffix)
            placed = entries(stream, defects) if separator is None else _convert(csv_rows(path, stream, separator))
            examples += _read(defects, placed, form, ids, language)
    return examples


def _convert(placed: Iterable[Placed]) -> Iterator[Placed]:
    return ((place, as_json(entry)) for place, entry in placed)


def read_squad(path: str | Path, *, skip_invalid: bool = False) -> list[Example]:
    """Read SQuAD v1.1 or v2.0, nested or flat, as :func:`read_examples` does with ``format="squad"``.

    Other fields of a question are kept, except ``is_impossible`` and ``plausible_answers``.
    """
    return read_examples(path, format="squad", skip_invalid=skip_invalid)


def read_hub(
    name: str, config: str | None, split: str, *, format: str | None = None, skip_invalid: bool = False
) -> list[Example]:
    """Read one split of a dataset with ``datasets.load_dataset``, from the hub or from its local cache.

    ``name`` may also be a local folder that ``datasets`` can load, and ``split`` a part of one: ``"train[:1000]"``.
    The ``config`` of XQuAD and MLQA names the language (``mlqa.zh.en``). For the other arguments, and the errors, see
    :func:`read_examples`.
    """
    examples = read_examples(load_hub_split(name, config, split), format=format, skip_invalid=skip_invalid)
    language = squad.language_of_configuration(config or "")
    return examples if language is None else [{**example, "language": language} for example in examples]


def format_named(name: str, key: str = "format") -> Format:
    """Return the format that a setting, the ``key``, names."""
    if name not in FORMATS:
        raise InputError(
            f"Unknown `{key}={name}`; expected one of {_list_formats()}, or null to detect it from the first record."
        )
    return FORMATS[name]


def format_like(entry: object) -> Format | None:
    """Return the first format whose fields an entry has; ``None`` if there is no such format."""
    if not isinstance(entry, Mapping):
        return None
    return next((known for known in FORMATS.values() if known.is_like(entry)), None)


def _list_formats() -> str:
    return ", ".join(f"{name} ({known.description})" for name, known in FORMATS.items())


def _read(
    defects: Defects, placed: Iterator[Placed], form: Format | None, ids: _UniqueIds, language: str | None = None
) -> list[Example]:
    examples: list[Example] = []
    for place, entry in placed:
        form = form or format_like(entry)
        if form is None:
            raise InputError(
                f"{defects.source}: unknown format; the first record is {describe(entry)}. The formats are "
                f"{_list_formats()}; set `format` (`data.format` on the command line) to one of them to see why the "
                "record does not match."
            )
        for question_place, raw in form.questions(place, entry, defects):
            identifiers = [raw[key] for key in _ID_KEYS if raw.get(key)] if isinstance(raw, Mapping) else []
            where = f"{question_place}, id {shorten(identifiers[0])}" if identifiers else question_place
            try:
                example = form.example(raw)
                example = example if language is None else {**example, "language": language}
                examples.append(ids.claim(example, where))
            except InvalidRecord as error:
                defects.add(where, str(error), num_records=num_lost_questions(raw))
            except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
                # Nested fields are not checked one by one: any of them may be missing or have any type.
                problem = f"not in the format {form.description}: {shorten(error)}."
                defects.add(where, problem, num_records=num_lost_questions(raw))
    if not examples and not defects.messages:
        raise InputError(f"{defects.source}: the dataset is empty; give a file with at least one question.")
    if not examples:
        raise InputError(
            f"{defects.source}: none of the {defects.num_records} record(s) is valid; first: {defects.messages[0]} "
            "Correct the file."
        )
    defects.warn()
    return examples
