"""Features of more questions than memory holds: in files that processes and runs share, or made as a stream is read.

Shape suffixes: F features (windows), T tokens of all windows.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
from torch.utils.data import IterableDataset

from portico.errors import InputError, printable
from portico.mrc.arrays import Bytes, Int64s
from portico.mrc.datasets.examples import Examples
from portico.mrc.features.windows import FeatureSet
from portico.trust.disk import (
    locked,
    open_new,
    read_text,
    refuse_irregular,
    remove_stale_staging,
    staged_folder,
    write_text,
)

EXAMPLES_AT_ONCE = 1000
_FORMAT = 2  # part of every key: features in another format are made again
_FIELDS = ("id", "question", "context", "answers", "target", "passage_candidates")  # what features depend on
_ABOUT = "features.json"
_DTYPES = ("<i8", "<i4", "|u1")  # of all arrays that are written
_OWN = frozenset(("row_starts", "example_index", "null_token", "char_offsets", "id_bytes", "id_ends"))


# ---- Files ----


class StoredFeatureSet(FeatureSet):
    """A :class:`FeatureSet` whose arrays lie in a folder; only the rows that are read take memory.

    A pickled copy for another process holds only the path.
    """

    def __init__(self, folder: Path, column_names: Sequence[str] | None = None) -> None:
        self.folder = folder
        about, arrays = _read(folder)
        self.row_starts = arrays.pop("row_starts")
        self.example_index = arrays.pop("example_index")
        self.null_token = arrays.pop("null_token")
        self.char_offsets = arrays.pop("char_offsets", None)
        self._example_ids = None
        if "id_ends" in arrays:
            self._example_ids = _StoredStrings(arrays.pop("id_bytes"), arrays.pop("id_ends"))
        self._tokens = {name: arrays[name] for name in about["tokens"]}
        self._integers = {name: arrays[name] for name in about["integers"]}
        self.context_index = arrays.get("context_idx")
        self.column_names = list(about["columns"] if column_names is None else column_names)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredFeatureSet, (self.folder, self.column_names)


class _StoredStrings(Sequence[str]):
    """Strings stored as one array of their UTF-8 bytes and the end of each string in it."""

    def __init__(self, content: Bytes, ends: Int64s) -> None:
        self._content = content
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        start = self._ends[index - 1] if index else 0
        return bytes(self._content[start : self._ends[index]]).decode()


def load_features(
    cache_dir: str, settings: Sequence[object], examples: Examples, parts: Iterator[FeatureSet]
) -> StoredFeatureSet:
    """Return the features of all examples, read from ``cache_dir`` or written there from ``parts``.

    Their folder is named after the settings and the content of the examples. One process writes while others wait; if
    it is killed, the next one starts over. Existing features can be read from a folder without write permission.

    Args:
        cache_dir: Folder of all cached features.
        settings: Everything besides the examples that the features depend on, as values of JSON.
        examples: The examples.
        parts: Features of :func:`slices` of the examples, in order.
    """
    folder = Path(cache_dir) / content_key(settings, examples)
    if not (folder / _ABOUT).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not (folder / _ABOUT).is_file():
                remove_stale_staging(folder.parent)
                with staged_folder(folder.parent) as staging:
                    (staging / folder.name).mkdir()
                    _write(staging / folder.name, parts)
    return StoredFeatureSet(folder)


def slices(examples: Examples) -> Iterator[Examples]:
    """Yield the examples in slices of at most ``EXAMPLES_AT_ONCE``."""
    for first in range(0, max(len(examples), 1), EXAMPLES_AT_ONCE):
        last = min(first + EXAMPLES_AT_ONCE, len(examples))
        yield examples.select(range(first, last)) if hasattr(examples, "select") else examples[first:last]


def content_key(settings: Sequence[object], examples: Examples) -> str:
    """Return a name that is the same only for equal settings and examples with equal content."""
    digest = hashlib.sha256(json.dumps([_FORMAT, *settings]).encode())
    for part in slices(examples):
        for example in part:
            row = [example.get(name) for name in _FIELDS]
            digest.update(json.dumps(row, ensure_ascii=False, sort_keys=True, default=np.ndarray.tolist).encode())
    return digest.hexdigest()[:32]


def _write(folder: Path, parts: Iterator[FeatureSet]) -> None:
    """Write features in parts; the example indices of each part start at 0."""
    files: dict[str, IO[bytes]] = {}
    arrays: dict[str, tuple[str, list[int]]] = {}
    num_tokens = num_examples = num_id_bytes = 0
    about: dict[str, Any] = {}

    def append(name: str, array: np.ndarray[Any, Any]) -> None:
        if name not in files:
            assert array.dtype.str in _DTYPES, f"{name} is {array.dtype.str}"
            files[name] = open_new(folder / name, "wb")
            arrays[name] = (array.dtype.str, [0, *array.shape[1:]])
        files[name].write(np.ascontiguousarray(array).data)
        arrays[name][1][0] += len(array)

    try:
        for part in parts:
            if not about:
                about = {"tokens": [*part._tokens], "integers": [*part._integers], "columns": part.column_names}
                append("row_starts", np.zeros(1, np.int64))
            append("row_starts", part.row_starts[1:] + num_tokens)
            append("example_index", part.example_index + num_examples)
            append("null_token", part.null_token)
            for name, column in [*part._tokens.items(), *part._integers.items()]:
                append(name, column)
            if part.char_offsets is not None:
                append("char_offsets", part.char_offsets)
            if part._example_ids is not None:
                ids = [name.encode() for name in part._example_ids]
                ends = num_id_bytes + np.cumsum([len(name) for name in ids], dtype=np.int64)
                append("id_bytes", np.frombuffer(b"".join(ids), np.uint8))
                append("id_ends", ends)
                num_id_bytes = int(ends[-1])
            num_tokens += int(part.row_starts[-1])
            num_examples += part.num_examples
    finally:
        for file in files.values():
            file.close()
    write_text(folder / _ABOUT, json.dumps({**about, "arrays": arrays}))


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Return what :func:`_write` wrote: the arrays are mapped, once their index is as it would have been written.

    numpy would map pointers (dtype object) from a file, and somebody else may be able to write to the folder.

    Raises:
        InputError: If a name, a type or a size cannot have been written, or offsets lead outside their array.
    """
    try:
        about = json.loads(read_text(folder / _ABOUT))
        arrays = {name: _map_array(folder, name, *described) for name, described in about["arrays"].items()}
        _check(about, arrays)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{folder / _ABOUT} is no index of stored features ({printable(str(error))}); delete the folder, and they "
            "are made again."
        ) from error
    return about, arrays


def _map_array(folder: Path, name: str, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
    if Path(name).name != name or (folder / name).is_symlink():
        raise ValueError(f"{name[:100]!r} is no file in it")
    if dtype not in _DTYPES:
        raise ValueError(f"{name} is {str(dtype)[:20]!r}, not one of {', '.join(_DTYPES)}")
    if not (shape and all(type(size) is int and size >= 0 for size in shape)):
        raise ValueError(f"{name} has the shape {str(shape)[:100]}")
    refuse_irregular(folder / name)
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if (found := (folder / name).stat().st_size) != num_bytes:
        raise ValueError(f"{name} has {found} bytes, not {num_bytes}")
    return np.memmap(folder / name, dtype, "r", shape=tuple(shape)) if num_bytes else np.zeros(shape, dtype)


def _check(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raise ``ValueError`` if arrays do not have the rows that others count, or the offsets of rows are not sorted."""
    starts, examples = arrays["row_starts"], arrays["example_index"]
    num_rows = len(examples)
    columns = [*about["tokens"], *about["integers"]]
    if not all(isinstance(name, str) for name in (*columns, *about["columns"])) or _OWN.intersection(columns):
        raise ValueError("its columns are no names of columns")
    lengths = dict.fromkeys(about["integers"], num_rows)
    lengths |= {"row_starts": num_rows + 1, "example_index": num_rows, "null_token": num_rows}
    num_tokens = _last_offset("row_starts", starts) if len(starts) else -1
    lengths |= dict.fromkeys(about["tokens"], num_tokens)
    if "char_offsets" in arrays:
        lengths["char_offsets"] = num_tokens
    if "id_ends" in arrays:
        num_bytes = _last_offset("id_ends", arrays["id_ends"]) if len(arrays["id_ends"]) else 0
        lengths["id_bytes"] = num_bytes
        num_examples = len(arrays["id_ends"])
        if num_rows and not (int(examples.min()) >= 0 and int(examples.max()) < num_examples):
            raise ValueError("example_index names examples that it does not have")
    for name, length in lengths.items():
        expected = (length, 2) if name == "char_offsets" else (length,)
        if arrays[name].shape != expected:
            raise ValueError(f"{name} has the shape {arrays[name].shape}, not {expected}")


def _last_offset(name: str, offsets: np.ndarray[Any, Any]) -> int:
    if offsets.ndim != 1 or offsets.dtype.str != "<i8" or offsets[0] < 0 or bool((np.diff(offsets) < 0).any()):
        raise ValueError(f"{name} are no offsets")
    return int(offsets[-1])


# ---- Streams ----


class FeatureStream(IterableDataset[dict[str, Any]]):
    """The labelled windows of a stream of examples, made as they are read.

    Args:
        examples: The examples, for example a ``datasets.IterableDataset``.
        make_features: Makes the features of some examples with the random numbers of this pass.
        draws: Returns the generator of the random numbers of a pass.
    """

    def __init__(
        self,
        examples: Iterable[Mapping[str, Any]],
        make_features: Callable[[Examples, np.random.Generator], FeatureSet],
        draws: Callable[[], np.random.Generator],
    ) -> None:
        self.examples = examples
        self._make_features = make_features
        self._draws = draws
        self._start: dict[str, Any] | None = None
        self._num_rows = 0  # yielded of the current part

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the source, if the source supports epochs."""
        if hasattr(self.examples, "set_epoch"):
            self.examples.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        draws = self._draws()
        start, self._start = self._start, None
        if start is not None:
            draws.bit_generator.state = start["draws"]
        num_to_skip = start["num_rows"] if start is not None else 0
        examples = iter(self.examples)
        while True:
            self._note_part(draws.bit_generator.state)
            self._num_rows = num_to_skip
            part = list(islice(examples, EXAMPLES_AT_ONCE))
            if not part:
                return
            rows = self._make_features(part, draws)
            for row in range(num_to_skip, len(rows)):
                self._num_rows = row + 1
                yield rows[row]
            num_to_skip = 0

    def _note_part(self, draws: Mapping[str, Any]) -> None:
        """Remember the state before a part is read."""


class SeekableFeatureStream(FeatureStream):
    """A :class:`FeatureStream` of a source whose position can be saved and restored."""

    examples: Any
    _part: dict[str, Any] | None = None

    def _note_part(self, draws: Mapping[str, Any]) -> None:
        self._part = {"source": self.examples.state_dict(), "draws": dict(draws)}

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the state of the source before the current part, and the rows yielded of that part."""
        if self._start is not None:
            return self._start
        if self._part is None:
            self._note_part(self._draws().bit_generator.state)
        return {**(self._part or {}), "num_rows": self._num_rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next iteration at the position in ``state``; the stream then reads a copy of the source."""
        self.examples = copy(self.examples)
        self.examples.load_state_dict(state["source"])
        self._start = state
