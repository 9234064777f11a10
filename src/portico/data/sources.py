"""Where entries come from: the files that paths, globs and folders name, and the JSON in them.

A JSON file is a document, which is an array of entries or an object with such an array as ``data``, or has one entry
per line.
"""

import ast
import csv
import difflib
import glob
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

from portico.data.defects import Defects, Placed, describe, shorten
from portico.errors import InputError, MissingPackageError
from portico.trust.disk import read_text
from portico.trust.names import is_from_folder, refuse_in_folder, refuse_outside

if TYPE_CHECKING:
    from datasets import Dataset

_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
# Written by `Dataset.save_to_disk`.
_STORED_DATASET, _STORED_FILES = "dataset_info.json", "state.json"
_STORED_SPLITS = "dataset_dict.json"  # written by `DatasetDict.save_to_disk`
_GZIP_MAGIC = b"\x1f\x8b"
MAX_GZIP_RATIO = 100.0
"""How many times as large as a gzip file its content may be; JSON is about 5 times as large, and gzip allows 1,030."""
_ALWAYS_EXPANDED = 1 << 26  # bytes
_CHUNK = 1 << 20
_ARRAY = re.compile(r"\barray\((\[.*?\])(?:,\s*dtype=\w+)?\)", re.DOTALL)  # as pandas writes an array into a cell
_LONGEST_CELL, _LONGEST_LITERAL = 1 << 27, 1 << 20  # characters


def import_datasets(why: str) -> ModuleType:
    """Return the package ``datasets``, or raise a `MissingPackageError` that starts with ``why`` it is needed."""
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError(
            f"{why}, but the package datasets is not installed; install it with `pip install datasets`, or use JSON "
            "files."
        ) from error
    return datasets


def load_hub_split(name: str, config: str | None, split: str) -> Any:
    """Return a split of a dataset of the hub or of its local cache, as ``datasets.load_dataset`` loads it.

    Raises:
        InputError: If it cannot be loaded; the message names the settings of the group ``data``.
    """
    refuse_in_folder(f"`data.dataset_name={name}`", "loaded by the package datasets")
    package = import_datasets(f"`data.dataset_name={name}` names a dataset")
    try:
        return package.load_dataset(name, config, split=split)
    except Exception as error:  # names, splits, scripts and damaged files raise errors of many packages
        reason = (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
        raise InputError(
            f"`data.dataset_name={name}` (configuration {config}, split {split}) cannot be loaded: {reason}. Check "
            "the names and the connection, or set `data.train_file` and `data.validation_file` to local files."
        ) from error


def paths_of(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files and stored datasets that paths, globs and folders name, in order and without duplicates.

    A glob or a folder without a match is refused here; a missing file only when it is opened.
    """
    names = [source] if isinstance(source, str | Path) else source
    for name in names:
        refuse_outside(name)
    paths = list(dict.fromkeys(path for name in names for path in _paths(str(name))))
    for path in paths:  # a link in a folder, or a match, may lead elsewhere
        refuse_outside(path)
    return paths


def _paths(name: str) -> list[Path]:
    path = Path(name)
    if (path / _STORED_DATASET).is_file():
        return [path]
    if (path / _STORED_SPLITS).is_file():
        splits = [entry for entry in sorted(path.iterdir()) if (entry / _STORED_DATASET).is_file()]
        named = ", ".join(map(str, splits)) or "none of them is there"
        raise InputError(f"{path}: holds a dataset of several splits; name the folder of a split: {named}.")
    if path.is_dir():
        matches = [entry for entry in sorted(path.iterdir()) if entry.name.endswith(_SUFFIXES)]
        if not matches:
            raise InputError(f"{path}: the folder has no file ending in {', '.join(_SUFFIXES)}; name the file.")
        return matches
    if path.is_file() or not glob.has_magic(name):
        return [path]
    matches = [Path(match) for match in sorted(glob.glob(name, recursive=True))]  # noqa: PTH207 - absolute globs too
    if not matches:
        raise InputError(f"{name}: no file matches; relative paths start at {Path.cwd()}.")
    return matches


@contextmanager
def stored_dataset(path: Path) -> "Iterator[Dataset | None]":
    """Open the ``datasets.Dataset`` saved in a folder; ``None`` if ``path`` does not contain a saved dataset.

    An `InputError` explains why it cannot be read, also while the caller reads its rows.
    """
    if not (path / _STORED_DATASET).is_file():
        yield None
        return
    package = import_datasets(f"{path} was saved with `datasets`")
    try:
        _refuse_files_elsewhere(path)
        dataset = package.load_from_disk(str(path))
        for name, feature in dataset.features.items():
            if package.features.features.require_decoding(feature):
                raise InputError(
                    f"{path}: the column {shorten(name)} names images or other files, which would be opened; remove "
                    "the column and save the dataset again."
                )
        dataset.data.validate(full=True)  # else a damaged offset ends the process
        yield dataset
    except InputError:
        raise
    except Exception as error:  # damaged files raise errors of json, pyarrow, datasets and Python
        raise InputError(
            f"{path}: cannot be read as a dataset saved with `datasets` ({shorten(' '.join(str(error).split()))}); "
            "save it again."
        ) from error


def _refuse_files_elsewhere(path: Path) -> None:
    """Raise an ``InputError`` if a stored dataset names a file that is not in its folder, or is a link out of it."""
    for listed in json.loads(read_text(path / _STORED_FILES))["_data_files"]:
        name = listed["filename"]
        if Path(name).name != name or (path / name).resolve().parent != path.resolve():
            raise InputError(
                f"{path / _STORED_FILES}: names {shorten(name)}, which is not in the folder; copy the file into it, "
                "or save the dataset again."
            )


class _LimitedGzipFile(gzip.GzipFile):
    """Reads no more than ``max_ratio`` times the size of the file, so that a small file cannot fill the memory."""

    def __init__(self, path: Path, max_ratio: float) -> None:
        super().__init__(path, "rb")
        self._path, self._max_ratio = path, max_ratio
        self._max_bytes = max(_ALWAYS_EXPANDED, max_ratio * path.stat().st_size)

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        if self.tell() > self._max_bytes:
            refuse_in_folder(f"{self._path}, whose content is {self._max_ratio:g} times as large", "expanded in full")
            raise InputError(
                f"{self._path}: its content is more than {self._max_ratio:g} times as large as the gzip file, and "
                f"more than {_ALWAYS_EXPANDED >> 20} MiB. If you trust the file, set `max_gzip_ratio` to a larger "
                "number (`data.max_gzip_ratio` on the command line)."
            )
        return data

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:  # a text stream that is read to its end asks for everything at once
            return b"".join(iter(partial(self.read1, _CHUNK), b""))
        return super().read(size)


@contextmanager
def open_text(path: Path, max_gzip_ratio: float = MAX_GZIP_RATIO) -> Iterator[TextIO]:
    """Open a UTF-8 file with or without byte order mark, plain or gzip-compressed (recognised by its first bytes).

    An `InputError` explains why it cannot be read, also while the caller reads and parses it. The content of a gzip
    file may be ``max_gzip_ratio`` times as large as the file, but always 64 MiB.
    """
    refuse_outside(path)
    if is_from_folder():  # whose author would choose how much a file may grow
        max_gzip_ratio = min(max_gzip_ratio, MAX_GZIP_RATIO)
    if not path.is_file():
        raise InputError(_why_no_file(path))
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        with _LimitedGzipFile(path, max_gzip_ratio) if is_gzip else path.open("rb") as content:
            yield io.TextIOWrapper(content, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path}: not UTF-8 (byte 0x{byte:02x}: {error.reason}); save it as UTF-8.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); check that it is complete and readable.") from error


def _why_no_file(path: Path) -> str:
    if path.is_dir():
        return f"{path}: a folder, not a file; name one file, for instance {path / 'train.json'}."
    if not path.parent.is_dir():
        return f"{path}: no such file, and no folder {path.parent}; relative paths start at {Path.cwd()}."
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    similar = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "no file has a similar name."
    return f"{path}: no such file; in {path.parent.resolve()}, {hint}"


def csv_rows(source: object, stream: TextIO, separator: str) -> Iterator[Placed]:
    """Yield the rows of a CSV file with a line of names as objects, with their line.

    Empty cells are null. Cells with JSON or a literal of Python are read, as pandas and datasets write lists and
    objects.
    """
    csv.field_size_limit(_LONGEST_CELL)
    rows = csv.DictReader(stream, delimiter=separator)
    try:
        for row in rows:
            cells = {str(name): _cell_value(cell) for name, cell in row.items() if name is not None}
            yield f"line {rows.line_num}", _nest(cells)
    except csv.Error as error:
        raise InputError(f"{source}, line {rows.line_num}: not CSV ({error}); correct the file.") from error


def _cell_value(cell: Any) -> Any:
    if not cell:
        return None
    if cell[0] not in "[{" or len(cell) > _LONGEST_LITERAL:
        return cell
    for parse, text in ((_parse_json, cell), (ast.literal_eval, cell), (ast.literal_eval, _ARRAY.sub(r"\1", cell))):
        try:
            return parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return cell


def _nest(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object whose fields `a.b` and `a.c` are the object `a`, as they were before a table was made."""
    nested: dict[str, Any] = {}
    for name, value in cells.items():
        outer, dot, inner = name.partition(".")
        if not dot:
            nested[name] = value
        elif isinstance(nested.setdefault(outer, {}), dict):
            nested[outer][inner] = value
    return nested


def parquet_rows(path: Path) -> Iterator[Placed]:
    """Yield the rows of a parquet file with their number; an `InputError` explains why it cannot be read."""
    refuse_outside(path)
    if not path.is_file():
        raise InputError(_why_no_file(path))
    import_datasets(f"{path} is a parquet file")  # which needs the package that reads it
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, partitioning=None)
        table.validate(full=True)  # else a damaged offset ends the process
        rows = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = shorten(" ".join(str(error).split()))
        raise InputError(f"{path}: cannot be read as a parquet file ({reason}); save it again.") from error
    return number_records(rows)


def number_records(records: Iterable[Any]) -> Iterator[Placed]:
    """Yield records with their number as their place."""
    if not isinstance(records, Iterable):
        raise InputError(
            f"{shorten(records)} gives no records; give a path, several of them, a `datasets.Dataset` or an iterable "
            "of records."
        )
    return ((f"record {number}", record) for number, record in enumerate(records, start=1))


def entries(stream: TextIO, defects: Defects) -> Iterator[Placed]:
    """Yield every entry of a file with its place, not yet validated; invalid lines are added to ``defects``."""
    # The first line decides: a JSON value that is not the whole document means JSON lines.
    head = ""
    for line in stream:
        head += line
        if line.strip():
            break
    try:
        value = _parse_json(head) if head.strip() else None
    except json.JSONDecodeError:
        value = None  # a document over several lines
    if isinstance(value, Mapping) and "data" not in value:
        yield from _lines(head, stream, defects)
        return
    tail = stream.read()
    if value is None or tail.strip():
        value = _parse_document(head + tail, defects)
    listed = value.get("data", [value]) if isinstance(value, Mapping) else value
    if not isinstance(listed, list):
        raise InputError(
            f"{defects.source}: `data`, or the top level, must be a list; got {describe(listed)}. Use "
            '{"data": [...]} as SQuAD does, a JSON array of flat records, or JSON lines.'
        )
    for number, entry in enumerate(listed, start=1):
        is_article = isinstance(entry, Mapping) and "paragraphs" in entry
        yield f"{'article' if is_article else 'record'} {number}", entry


def _lines(head: str, stream: TextIO, defects: Defects) -> Iterator[Placed]:
    # `str.splitlines` would also split at separators such as U+2028, which JSON strings may hold.
    lines = itertools.chain(head.rstrip("\n").split("\n"), stream)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", _parse_json(line.rstrip("\n"))
        except json.JSONDecodeError as error:
            defects.add(f"line {number}, column {error.colno}", f"not JSON ({error.msg}).")


def _parse_json(text: str) -> Any:
    """Return a JSON value; an integer that Python does not convert (more than 4300 digits) stays a string."""
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise
        except ValueError:
            return json.loads(text, parse_int=_int_or_digits)
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", text, 0) from error


def _int_or_digits(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


def _parse_document(text: str, defects: Defects) -> Any:
    if not text.strip():
        raise InputError(f"{defects.source}: the file is empty; give questions as JSON or JSON lines.")
    try:
        return _parse_json(text)
    except json.JSONDecodeError as error:
        there = shorten(text[error.pos :].partition("\n")[0]) if error.pos < len(text) else "the end of the file"
        raise InputError(
            f"{defects.source}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}, at {there}). "
            "Use a JSON document, or JSON lines with one complete record per line."
        ) from error
