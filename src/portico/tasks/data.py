"""The group ``data`` of the tasks: records made from a seed, of files, or of a dataset of the hub."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from portico.data.defects import Defects
from portico.data.sources import entries, load_hub_split, open_text, paths_of
from portico.errors import InputError
from portico.experiments.settings import setting
from portico.tasks.task import Record, Task
from portico.trust.names import data_only, refuse_outside

# Draws for each record of the evaluation set, which must not be in the training set.
_MOST_DRAWS = 20


class Records(list[Record]):
    """Records of a dataset of the hub; ``names`` has the class names of each column, in the order of the dataset."""

    names: Mapping[str, list[str]] = {}


@data_only
@dataclass(kw_only=True)
class TaskData:
    """The group ``data`` of a task: embedded records, files, or a dataset of the hub."""

    train_file: str | list[str] | None = None
    """Records to train on, instead of the embedded ones: JSON, JSON lines, CSV or TSV; text for language models."""
    validation_file: str | list[str] | None = None
    """Records to evaluate on."""
    predict_file: str | list[str] | None = None
    """Records for mode=predict, with or without labels; null: the records to evaluate on."""
    dataset_name: str | None = None
    """A dataset of the hub, instead of files; needs the package datasets and a connection or a cached copy."""
    dataset_config_name: str | None = None
    """Configuration of the dataset, such as mrpc of nyu-mll/glue."""
    train_split: str = "train"
    """Split of the dataset to train on."""
    validation_split: str = "validation"
    """Split of the dataset to evaluate on."""
    predict_split: str | None = None
    """Split of the dataset for mode=predict; null: the split to evaluate on."""
    num_train: int = setting(4000, least=1)
    """Embedded records to train on."""
    num_validation: int = setting(500, least=1)
    """Embedded records to evaluate on."""
    seed: int = 0
    """Seed of the embedded records only; args.seed is the seed of the training."""
    max_train_samples: int | None = setting(None, least=1)
    """Train only on the first of the records."""
    max_eval_samples: int | None = setting(None, least=1)
    """Evaluate only on the first of the records."""
    max_predict_samples: int | None = setting(None, least=1)
    """Predict only the first of the records."""

    def load(self, task: Task[Any], split: str) -> Sequence[Record]:
        """Return the records of ``"train"``, ``"validation"`` or ``"predict"``.

        Raises:
            InputError: If settings contradict each other, or a file or dataset cannot be read.
        """
        if split == "predict" and self.predict_file is None and self.predict_split is None:
            split = "validation"
        files = {name: getattr(self, f"{name}_file") for name in ("train", "validation", "predict")}
        if self.dataset_name is not None:
            given = next((name for name, file in files.items() if file is not None), None)
            if given is not None and given != "predict":
                raise InputError(
                    f"`data.dataset_name={self.dataset_name}` and `data.{given}_file={files[given]}` both name the "
                    "records; set one of them, and null for the other."
                )
            if given != split:
                return self._hub_split(str(getattr(self, f"{split}_split")))
        if files[split] is not None:
            return _read(task, files[split])
        sources = {name: files[name] for name in ("train", "validation")}
        if any(file is not None for file in sources.values()) or task.made is None:
            shown = " ".join(f"data.{name}_file={file or 'null'}" for name, file in sources.items())
            raise InputError(
                f"`data.{split}_file` is not set ({shown}); set it to a file of records"
                + ("." if task.made is None else ", or set none of them to use the embedded data.")
            )
        return self._make_records(task.made, split)

    def _make_records(self, make: Callable[[Random], Record], split: str) -> list[Record]:
        """Return embedded records; no record of the evaluation set is in the training set, if enough differ."""
        # Neighbouring seeds do not share records.
        draws = [Random(2 * self.seed), Random(2 * self.seed + 1)]
        train = [make(draws[0]) for _ in range(self.num_train)]
        if split == "train":
            return train
        seen = set(map(str, train))
        made = (make(draws[1]) for _ in range(_MOST_DRAWS * self.num_validation))
        found = list(islice((record for record in made if str(record) not in seen), self.num_validation))
        # A task with few distinct records may have used all of them for training.
        return found + [make(draws[1]) for _ in range(self.num_validation - len(found))]

    def _hub_split(self, split: str) -> Records:
        loaded = load_hub_split(str(self.dataset_name), self.dataset_config_name, split)
        kinds = {column: getattr(kind, "feature", kind) for column, kind in loaded.features.items()}
        names = {column: list(kind.names) for column, kind in kinds.items() if hasattr(kind, "names")}
        records = Records({**row, **{key: _name(row[key], known) for key, known in names.items()}} for row in loaded)
        records.names = names
        return records


def _read(task: Task[Any], source: str | list[str]) -> list[Record]:
    if task.read is None:
        return [record for path in paths_of(source) for record in records_of(path)]
    paths = [source] if isinstance(source, str) else source
    for path in paths:
        refuse_outside(path)
    return [record for path in paths for record in task.read(Path(path))]


def _name(value: int | list[int], names: Sequence[str]) -> object:
    """Return the class names of one number or a list of numbers; -1, a missing label, stays."""
    if isinstance(value, list):
        return [_name(item, names) for item in value]
    return value if value == -1 else names[value]


def records_of(path: Path) -> Iterator[Record]:
    """Yield the records of a JSON, CSV or TSV file, or the lines of a text file with their line breaks."""
    with open_text(path) as stream:
        if path.suffix in (".csv", ".tsv"):
            yield from _convert_numbers(list(csv.DictReader(stream, delimiter="\t" if path.suffix == ".tsv" else ",")))
        elif path.suffix == ".txt":
            yield from ({"text": line} for line in stream)
        else:
            defects = Defects(path, skip_invalid=False)
            for place, entry in entries(stream, defects):
                if not isinstance(entry, Mapping):
                    raise InputError(f"{path}, {place}: not an object but {str(entry)[:60]!r}; write one a record.")
                try:
                    json.dumps(entry, ensure_ascii=False).encode()
                except UnicodeEncodeError as error:  # JSON can express half a surrogate pair, which tokenizers reject
                    raise InputError(f"{path}, {place}: not valid Unicode ({error.reason}); correct it.") from error
                yield entry


def _convert_numbers(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table, converting columns that contain only numbers."""
    for column in table[0] if table else ():
        for kind in (int, float):
            try:
                numbers = [kind(row[column]) for row in table]
            except (ValueError, TypeError):
                continue
            for row, number in zip(table, numbers, strict=True):
                row[column] = number
            break
    return table
