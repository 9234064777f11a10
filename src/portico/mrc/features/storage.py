"""Features of more questions than memory holds: in files that processes and runs share, or made as a stream is read.

Shape suffixes: F features (windows), T tokens of all windows.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from filelock import FileLock
from torch.utils.data import IterableDataset

from portico.mrc.arrays import Bytes, Int64s
from portico.mrc.datasets.examples import Examples
from portico.mrc.features.windows import FeatureSet

EXAMPLES_AT_ONCE = 1000
_FORMAT = 2  # part of every key: features in another format are made again
_FIELDS = ("id", "question", "context", "answers", "target", "passage_candidates")  # what features depend on
_ABOUT = "features.json"


# ---- Files ----


class StoredFeatureSet(FeatureSet):
    """A :class:`FeatureSet` whose arrays lie in a folder; only the rows that are read take memory.

    A pickled copy for another process holds only the path.
    """

    def __init__(self, folder: Path, column_names: Sequence[str] | None = None) -> None:
        self.folder = folder
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        arrays = {
            name: np.memmap(folder / name, dtype, "r", shape=tuple(shape)) if shape[0] else np.zeros(shape, dtype)
            for name, (dtype, shape) in about["arrays"].items()
        }
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


def stored_features(
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
        with FileLock(f"{folder}.lock"):
            if not (folder / _ABOUT).is_file():
                partial = folder.with_name(f"{folder.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
                partial.mkdir()
                try:
                    _write(partial, parts)
                    partial.rename(folder)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
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
    files: dict[str, BinaryIO] = {}
    arrays: dict[str, tuple[str, list[int]]] = {}
    num_tokens = num_examples = num_id_bytes = 0
    about: dict[str, Any] = {}

    def append(name: str, array: np.ndarray[Any, Any]) -> None:
        if name not in files:
            files[name] = (folder / name).open("wb")
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
    (folder / _ABOUT).write_text(json.dumps({**about, "arrays": arrays}), encoding="utf-8")


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
