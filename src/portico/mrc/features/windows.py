"""Tokenised windows of question and context: in columns, and as a map-style dataset.

Shape suffixes: E examples, F features (windows), T tokens of all windows one after the other, 2 a pair.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np

from portico.mrc.arrays import Bools, Bytes, Int32s, Int64s


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of all examples; row ``f`` is ``T``-slice ``row_starts[f] : row_starts[f + 1]``."""

    example_index_F: Int64s
    """Which example each window was cut from, ascending."""
    row_starts: Int64s
    """Where each row starts and the last one ends, ``[F + 1]``."""
    input_ids_T: Int32s
    attention_mask_T: Bytes
    token_type_ids_T: Bytes
    char_offsets_T2: Int32s
    """Characters ``[start, end)`` of each token in its question or context; ``(0, 0)`` on special tokens, padding."""
    in_context_T: Bools

    @property
    def lengths_F(self) -> Int64s:
        return np.diff(self.row_starts)

    def equals(self, other: "Windows") -> bool:
        return all(np.array_equal(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    def take(self, rows_F: Int64s) -> "Windows":
        lengths_F = self.lengths_F[rows_F]
        token_T = ranges(self.row_starts[rows_F], lengths_F)
        columns_T = [getattr(self, field.name).take(token_T, axis=0) for field in fields(self)[2:]]
        return Windows(self.example_index_F[rows_F], np.concatenate(([0], np.cumsum(lengths_F))), *columns_T)

    def first_in_row(self, marked_T: Bools) -> Int64s:
        """Return the flat index of the first marked token of each row, or of the row's end, ``int64 [F]``."""
        return first_marked(marked_T, self.row_starts[:-1], self.row_starts[1:])

    def context_bounds(self) -> tuple[Int64s, Int64s]:
        """Return the flat index of the first and of the last context token of each window, ``int64 [F]`` each.

        In a window without context the last comes before the first.
        """
        first_F = self.first_in_row(self.in_context_T)
        last_F = first_F + np.add.reduceat(self.in_context_T, self.row_starts[:-1], dtype=np.int64) - 1
        return first_F, last_F


def ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return ``start, start + 1, ...`` of every range, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)


def first_marked(marked_T: Bools, starts: Int64s, stops: Int64s) -> Int64s:
    """Return the index of the first True in every range ``[start, stop)``, or its ``stop``."""
    return first_of(np.flatnonzero(marked_T), starts, stops)


def first_of(places: Int64s, starts: Int64s, stops: Int64s) -> Int64s:
    """Return the first of the ascending ``places`` in every range ``[start, stop)``, or its ``stop``."""
    ended = np.append(places, stops[-1:])
    first: Int64s = ended[np.searchsorted(places, starts)]
    return np.minimum(first, stops)


def last_marked(marked_T: Bools, starts: Int64s, stops: Int64s) -> Int64s:
    """Return the index of the last True in every range ``[start, stop)``, or ``start - 1``."""
    marked = np.append(-1, np.flatnonzero(marked_T))
    last: Int64s = marked[np.searchsorted(marked, stops) - 1]
    return np.maximum(last, starts - 1)


class FeatureSet:
    """The model's inputs as a map-style dataset with one row per window.

    Rows are kept as flat arrays and converted to Python lists on access. ``remove_columns`` returns a set for a model
    with fewer inputs; the attributes below stay.

    Args:
        windows: The tokenised windows of the examples in ``example_ids``.
        token_type_ids: Whether rows have ``token_type_ids``.
        labels: Further integer columns by name, ``int64 [F]`` each: ``start_positions``, ``end_positions`` and
            ``target_type``.
        example_ids: Identifier of each example, for evaluation: rows then have ``example_id`` and ``offset_mapping``
            (``None`` outside the context), and ``context_idx`` if there is a ``context_index``.
        context_index: Which of its question's contexts each window was cut from, ``int64 [F]``; ``None`` if every
            question has one context.
        num_examples: How many examples the windows were cut from, without ``example_ids``.
        null_token: The token of each row that represents "no answer", ``int64 [F]``; by default the first.

    Attributes:
        column_names: The keys of a row, in order.
        row_starts: Where each row starts in the flat arrays, and where the last one ends, ``int64 [F + 1]``.
        example_index: The example of each row, ``int64 [F]``.
        context_index: As given.
        null_token: As given.
        char_offsets: Characters ``[start, end)`` of every token in its context, ``int32 [T, 2]``, -1 outside the
            context; ``None`` for training.
    """

    def __init__(
        self,
        windows: Windows,
        *,
        token_type_ids: bool,
        labels: Mapping[str, Int64s] | None = None,
        example_ids: list[str] | None = None,
        context_index: Int64s | None = None,
        num_examples: int = 0,
        null_token: Int64s | None = None,
    ) -> None:
        self.num_examples = num_examples if example_ids is None else len(example_ids)
        self.row_starts = windows.row_starts
        self.example_index = windows.example_index_F
        self.context_index = context_index
        self.null_token = np.zeros_like(self.example_index) if null_token is None else null_token
        self.char_offsets: Int32s | None = None
        # In the order in which tokenizers return them, so that rows equal theirs.
        self._tokens: dict[str, np.ndarray[Any, Any]] = {"input_ids": windows.input_ids_T}
        if token_type_ids:
            self._tokens["token_type_ids"] = windows.token_type_ids_T
        self._tokens["attention_mask"] = windows.attention_mask_T
        self._integers: dict[str, Int64s] = dict(labels or {})
        self._example_ids: Sequence[str] | None = example_ids
        self._gives_rows = False
        if example_ids is not None and context_index is not None:
            self._integers["context_idx"] = context_index
        self.column_names = [*self._tokens, *self._integers]
        if example_ids is not None:
            self.column_names += ["example_id", "offset_mapping"]
            self.char_offsets = np.where(windows.in_context_T[:, None], windows.char_offsets_T2, np.int32(-1))

    @property
    def lengths(self) -> Int64s:
        """Tokens in each row, ``int64 [F]``."""
        return np.diff(self.row_starts)

    @property
    def example_id(self) -> list[str]:
        """Identifier of the example of each row; for evaluation only."""
        assert self._example_ids is not None, "training features know their examples by index only"
        return [self._example_ids[e] for e in self.example_index]

    def example_indices(self, example_ids: Sequence[str]) -> Int64s | None:
        """Return the place of each row's example, ``int64 [F]``; ``None`` if the set was made of other examples."""
        return self.example_index if self._example_ids == example_ids else None

    def remove_columns(self, column_names: Iterable[str]) -> "FeatureSet":
        """Return a set on the same arrays whose rows lack these columns."""
        removed = set(column_names)
        pruned = copy(self)
        pruned._gives_rows = False
        pruned.column_names = [name for name in self.column_names if name not in removed]
        return pruned

    def __len__(self) -> int:
        return len(self.example_index)

    def by_columns(self) -> "FeatureSet":
        """Return a set on the same arrays from which torch's ``DataLoader`` takes a batch as ``FeatureRows``."""
        view = copy(self)
        view._gives_rows = True
        return view

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], "FeatureRows"] | None:
        # torch's loader calls this method, if there is one, instead of indexing row by row.
        return self.rows if self._gives_rows else None

    def rows(self, indices: Sequence[int]) -> "FeatureRows":
        return FeatureRows(self, np.asarray(indices, np.int64))

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"feature {index} of {len(self)}")
        row = range(len(self))[index]
        return {name: self._value(name, row) for name in self.column_names}

    def _value(self, name: str, row: int) -> Any:
        tokens = slice(self.row_starts[row], self.row_starts[row + 1])
        if name in self._tokens:
            return self._tokens[name][tokens].tolist()
        if name in self._integers:
            return int(self._integers[name][row])
        assert self._example_ids is not None
        assert self.char_offsets is not None
        if name == "example_id":
            return self._example_ids[self.example_index[row]]
        return [(start, end) if start >= 0 else None for start, end in self.char_offsets[tokens].tolist()]


@dataclass(frozen=True, eq=False)
class FeatureRows(Sequence[dict[str, Any]]):
    """Rows of a ``FeatureSet``: a sequence of dicts that can also be read as arrays.

    Attributes:
        features: The set.
        indices: The rows, ``int64 [B]``.
    """

    features: FeatureSet
    indices: Int64s

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> "FeatureRows": ...
    def __getitem__(self, index: int | slice) -> "dict[str, Any] | FeatureRows":
        if isinstance(index, slice):
            return FeatureRows(self.features, self.indices[index])
        return self.features[int(self.indices[index])]

    @property
    def lengths(self) -> Int64s:
        """Tokens in each row, ``int64 [B]``."""
        bounds = self.features.row_starts
        return bounds[self.indices + 1] - bounds[self.indices]

    def pad(self, padding: Mapping[str, int]) -> dict[str, Int64s] | None:
        """Return the columns, ``int64 [B, L]`` or ``[B]`` each; ``None`` if a column is not numeric.

        Rows are padded on the right, where padding moves no label, to the length of the longest with the ``padding``
        of their column.
        """
        features = self.features
        lengths_B = self.lengths
        if not set(features.column_names) <= {*features._tokens, *features._integers}:
            return None
        width = int(lengths_B.max())
        place_L = np.arange(width)
        is_equal = bool((lengths_B == width).all())
        # Places of padding point at other tokens, whose values are overwritten below.
        flat_BL = features.row_starts[self.indices, None] + place_L
        is_padding_BL = place_L >= lengths_B[:, None]
        columns: dict[str, Int64s] = {}
        for name in features.column_names:
            if name in features._integers:
                columns[name] = features._integers[name][self.indices].astype(np.int64, copy=False)
                continue
            values_BL = features._tokens[name].take(flat_BL, mode="clip").astype(np.int64)
            if not is_equal:
                values_BL[is_padding_BL] = padding[name]
            columns[name] = values_BL
        return columns
