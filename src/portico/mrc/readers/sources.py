"""Which files a path, a glob or a folder names."""

import glob
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.mrc.readers.optional_datasets import import_datasets

_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_STORED_DATASET = "dataset_info.json"  # what `Dataset.save_to_disk` leaves in its folder
# xquad.es.json; dev-context-es-question-de.json, where the language is that of the context, and so of the answer.
_LANGUAGE_IN_NAME = re.compile(r"^(?:xquad\.|(?:dev|test)-context-)([a-z]{2})(?:\.|-question-)")


def paths_of(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files, and folders of stored data sets, that a source names, in order and each once.

    Args:
        source: Paths, globs and folders; of a folder all files of JSON and JSON lines, by name.

    Raises:
        InputError: If a glob or a folder holds no file. A missing file is told when it is opened.
    """
    named = [source] if isinstance(source, str | Path) else source
    return list(dict.fromkeys(path for one in named for path in _paths(str(one))))


def _paths(name: str) -> list[Path]:
    path = Path(name)
    if (path / _STORED_DATASET).is_file():
        return [path]
    if path.is_dir():
        return _listed(path)
    if path.is_file() or not glob.has_magic(name):
        return [path]
    found = [Path(match) for match in sorted(glob.glob(name, recursive=True))]  # noqa: PTH207 - absolute globs too
    if not found:
        raise InputError(f"{name}: no file has such a name; relative paths start at {Path.cwd()}.")
    return found


def _listed(folder: Path) -> list[Path]:
    found = [path for path in sorted(folder.iterdir()) if path.name.endswith(_SUFFIXES)]
    if not found:
        raise InputError(f"{folder}: a folder without a file that ends in {', '.join(_SUFFIXES)}; name the file.")
    return found


def language_of_name(name: str) -> str | None:
    """Return the language of the contexts, where the file names of XQuAD and MLQA tell it."""
    match = _LANGUAGE_IN_NAME.match(name)
    return match and match[1]


def stored_dataset(path: Path) -> Any:
    """Return the ``datasets.Dataset`` that was saved in a folder; ``None`` if this is no such folder."""
    if not (path / _STORED_DATASET).is_file():
        return None
    return import_datasets(f"{path} was saved with it").load_from_disk(str(path))
