from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np

from portico.mrc.arrays import Int32s, Int64s
from portico.mrc.features.windows import Windows


class FeatureSet:
    """The model's inputs, one row a window, as a map-style dataset.

    Rows are kept as flat arrays and made into Python lists when asked for. `remove_columns` gives the set that a
    model with fewer inputs reads; the attributes below stay.

    Args:
        windows: The tokenised windows; their examples are those of `example_ids`.
        token_type_ids: Whether rows carry ``token_type_ids``.
        labels: Numbers that rows carry by name, ``int64 [F]`` each: ``start_positions``, ``end_positions`` and perhaps
            ``target_type``.
        example_ids: Identifier of each example, for evaluation: rows then carry ``example_id`` and
            ``offset_mapping`` (``None`` outside the context), and ``context_idx`` where there is a `context_index`.
        context_index: Which of its question's contexts each window was cut from, ``int64 [F]``; ``None`` where every
            question has one.

    Attributes:
        column_names: What a row holds, in order.
        row_starts: Where each row begins in the flat arrays, and where the last ends, ``int64 [F + 1]``.
        example_index: The example each row belongs to, ``int64 [F]``.
        context_index: As given.
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
    ) -> None:
        self.row_starts = windows.row_starts
        self.example_index = windows.example_index_F
        self.context_index = context_index
        self.char_offsets: Int32s | None = None
        self._tokens: dict[str, np.ndarray[Any, Any]] = {"input_ids": windows.input_ids_T}
        if token_type_ids:
            self._tokens["token_type_ids"] = windows.token_type_ids_T
        self._tokens["attention_mask"] = windows.attention_mask_T
        self._numbers: dict[str, Int64s] = dict(labels or {})
        self._example_ids = example_ids
        if example_ids is not None and context_index is not None:
            self._numbers["context_idx"] = context_index
        self.column_names = [*self._tokens, *self._numbers]
        if example_ids is not None:
            self.column_names += ["example_id", "offset_mapping"]
            self.char_offsets = np.where(windows.in_context_T[:, None], windows.char_offsets_T2, np.int32(-1))

    @property
    def lengths(self) -> Int64s:
        """Tokens in each row, ``int64 [F]``."""
        return np.diff(self.row_starts)

    @property
    def example_id(self) -> list[str]:
        """Identifier of the example each row belongs to, ``F`` of them; for evaluation only."""
        assert self._example_ids is not None, "training features know their examples by index only"
        return [self._example_ids[e] for e in self.example_index]

    def remove_columns(self, column_names: Iterable[str]) -> "FeatureSet":
        """Return a set on the same arrays whose rows lack these columns."""
        removed = set(column_names)
        pruned = copy(self)
        pruned.column_names = [name for name in self.column_names if name not in removed]
        return pruned

    def __len__(self) -> int:
        return len(self.example_index)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"feature {index} of {len(self)}")
        row = range(len(self))[index]
        return {name: self._value(name, row) for name in self.column_names}

    def _value(self, name: str, row: int) -> Any:
        tokens = slice(self.row_starts[row], self.row_starts[row + 1])
        if name in self._tokens:
            return self._tokens[name][tokens].tolist()
        if name in self._numbers:
            return int(self._numbers[name][row])
        assert self._example_ids is not None
        assert self.char_offsets is not None
        if name == "example_id":
            return self._example_ids[self.example_index[row]]
        return [(start, end) if start >= 0 else None for start, end in self.char_offsets[tokens].tolist()]
