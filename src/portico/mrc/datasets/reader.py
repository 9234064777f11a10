"""Reads questions of any known format from files, data sets and the hub, as flat examples.

To add a format, write a module with a `Format` and enter it in `FORMATS`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.mrc.datasets import base_schema, fid, mrqa, natural_questions, squad, tydi
from portico.mrc.datasets.examples import Example
from portico.mrc.datasets.records import Defects, Format, InvalidRecord, Placed, describe
from portico.mrc.datasets.sources import (
    entries,
    import_datasets,
    language_of_name,
    numbered,
    open_text,
    paths_of,
    stored_dataset,
)

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
"""Formats by name, in the order in which they are tried by `read_examples`."""

_ID_KEYS = ("id", "example_id", "qid")


class _UniqueIds:
    """Adds missing identifiers, optionally prefixes them with the language, and rejects duplicates."""

    def __init__(self, *, with_language: bool = False) -> None:
        self._with_language = with_language
        self._places: dict[str, str] = {}

    def claim(self, example: Example, place: str) -> Example:
        """Return the example with its identifier, by default its number."""
        identifier = example.get("id", str(len(self._places)))
        if self._with_language and "language" in example:
            identifier = f"{example['language']}:{identifier}"
        first = self._places.setdefault(identifier, place)
        if first is not place:
            raise InvalidRecord(f"duplicate id, first used by {first}; predictions are stored by id.")
        return {**example, "id": identifier} if "id" in example else {"id": identifier, **example}


def read_examples(source: Any, *, format: str | None = None, skip_invalid: bool = False) -> list[Example]:
    """Read questions with their contexts and answers.

    Args:
        source: A path, a glob, a folder, or several of these; or a ``datasets.Dataset`` or other iterable of records.
            Files are UTF-8 JSON or JSON lines, plain or gzip-compressed.
        format: A name in :data:`~portico.mrc.datasets.reader.FORMATS`; ``None`` detects it from the first record of
            each file.
        skip_invalid: Skip invalid records, with one warning per file, instead of raising.

    Returns:
        Records ``{"id", "title", "context", "question", "answers": {"text": [...], "answer_start": [...]}}`` in
        order. ``answer_start`` counts characters; a question without an answer has two empty lists. ``context`` is a
        string, or a list of strings if the question has several. TyDi QA, Natural Questions and the base schema add
        ``language``, ``target`` (one entry per annotator) and ``passage_candidates``. If files of several languages
        are read, identifiers are prefixed with the language, because translations share them.

    Raises:
        InputError: If a source cannot be read, has an unknown format, holds no valid question or, unless skipped,
            holds an invalid record. The message names the source and the record.
    """
    if not _names_files(source):
        return _read(Defects("The data set", skip_invalid=skip_invalid), numbered(source), format, _UniqueIds())
    paths = paths_of(source)
    languages = {language_of_name(path.name) for path in paths}
    examples: list[Example] = []
    ids = _UniqueIds(with_language=len(languages - {None}) > 1)
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
    """Read SQuAD v1.1 or v2.0, nested or flat, as :func:`read_examples` does with ``format="squad"``.

    Other fields of a question are kept, except ``is_impossible`` and ``plausible_answers``.
    """
    return read_examples(path, format="squad", skip_invalid=skip_invalid)


def read_hub(
    name: str, config: str | None, split: str, *, format: str | None = None, skip_invalid: bool = False
) -> list[Example]:
    """Read one split of a data set with ``datasets.load_dataset``, from the hub or from its local cache.

    ``name`` may also be a local folder that ``datasets`` can load, and ``split`` a part of one: ``"train[:1000]"``.
    The ``config`` of XQuAD and MLQA names the language (``mlqa.zh.en``). For the other arguments, and the errors, see
    :func:`read_examples`.
    """
    package = import_datasets(f"`data.dataset_name={name}` names a data set")
    try:
        dataset: Any = package.load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        # `datasets` raises DatasetNotFoundError (OSError), ValueError for a split, RuntimeError for loading scripts.
        raise InputError(
            f"`data.dataset_name={name}` (configuration {config}, split {split}) cannot be loaded: "
            f"{' '.join(str(error).split())} Check the names and the connection, or set `data.train_file` and "
            "`data.validation_file` to local files."
        ) from error
    examples = read_examples(dataset, format=format, skip_invalid=skip_invalid)
    family, _, rest = (config or "").partition(".")
    if family not in ("xquad", "mlqa", "MLQA"):
        return examples
    return [{**example, "language": rest[:2]} for example in examples]


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise InputError(
            f"Unknown `data.format={name}`; expected one of {_listing()}, or null to detect it from the first record."
        )
    return FORMATS[name]


def format_like(entry: Any) -> Format | None:
    """Return the first format that an entry looks like, ``None`` if it looks like none."""
    if not isinstance(entry, Mapping):
        return None
    return next((one for one in FORMATS.values() if one.is_like(entry)), None)


def _listing() -> str:
    return ", ".join(f"{name} ({one.description})" for name, one in FORMATS.items())


def _names_files(source: Any) -> bool:
    return isinstance(source, str | Path) or (
        isinstance(source, Sequence) and bool(source) and all(isinstance(one, str | Path) for one in source)
    )


def _read(
    defects: Defects, placed: Iterator[Placed], name: str | None, ids: _UniqueIds, language: str | None = None
) -> list[Example]:
    """Return the valid examples among the entries of one source."""
    one = None if name is None else format_named(name)
    examples: list[Example] = []
    for place, entry in placed:
        one = one or format_like(entry)
        if one is None:
            raise InputError(
                f"{defects.source}: unknown format; the first record is {describe(entry)}. The formats are "
                f"{_listing()}; set `data.format` to one of them to see why the record does not match."
            )
        for question_place, raw in one.questions(place, entry, defects):
            where = _with_id(question_place, raw)
            try:
                example = one.example(raw)
                example = example if language is None else {**example, "language": language}
                examples.append(ids.claim(example, where))
            except InvalidRecord as error:
                defects.add(where, str(error))
            except (AttributeError, IndexError, KeyError, TypeError) as error:
                # Nested fields are not checked one by one: any of them may be missing or have any type.
                defects.add(where, f"not in the format {name or 'of the first record'}: {error!r}.")
    if not examples and not defects.messages:
        raise InputError(f"{defects.source}: the data set is empty; give a file with at least one question.")
    if not examples:
        raise InputError(
            f"{defects.source}: none of the {len(defects.messages)} record(s) is valid; first: {defects.messages[0]} "
            "Correct the file."
        )
    defects.warn()
    return examples


def _with_id(place: str, raw: Any) -> str:
    values = (raw.get(key) for key in _ID_KEYS) if isinstance(raw, Mapping) else ()
    identifier = next(filter(None, values), None)
    return f"{place}, id {identifier!r}" if identifier else place
