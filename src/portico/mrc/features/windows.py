"""Tokenised windows of question and context, in columns.

Shape suffixes: E examples, F features (windows), T tokens of all windows one after the other, 2 a pair.
"""

from dataclasses import dataclass, fields

import numpy as np

from portico.mrc.arrays import Bools, Bytes, Int32s, Int64s


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of all examples; row ``f`` is ``T``-slice ``row_starts[f] : row_starts[f + 1]``.

    Attributes:
        example_index_F: Which example each window was cut from, ``int64 [F]``, ascending.
        row_starts: Where each row begins and the last one ends, ``int64 [F + 1]``.
        input_ids_T: Vocabulary ids, ``int32 [T]``.
        attention_mask_T: 0 on padding, otherwise 1, ``uint8 [T]``.
        token_type_ids_T: Segment ids, ``uint8 [T]``.
        char_offsets_T2: First character of each token and the one after its last, in its own text (question or
            context), ``int32 [T, 2]``; ``(0, 0)`` on special tokens and padding.
        in_context_T: True on the tokens of the context, ``bool [T]``.
    """

    example_index_F: Int64s
    row_starts: Int64s
    input_ids_T: Int32s
    attention_mask_T: Bytes
    token_type_ids_T: Bytes
    char_offsets_T2: Int32s
    in_context_T: Bools

    @property
    def lengths_F(self) -> Int64s:
        """Tokens in each window, padding included, ``int64 [F]``."""
        return np.diff(self.row_starts)

    def equals(self, other: "Windows") -> bool:
        """Return whether every column holds the same values."""
        return all(np.array_equal(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    def take(self, rows_F: Int64s) -> "Windows":
        """Return these windows, in this order."""
        lengths_F = self.lengths_F[rows_F]
        token_T = ranges(self.row_starts[rows_F], lengths_F)
        return Windows(
            self.example_index_F[rows_F],
            np.concatenate(([0], np.cumsum(lengths_F))),
            self.input_ids_T[token_T],
            self.attention_mask_T[token_T],
            self.token_type_ids_T[token_T],
            self.char_offsets_T2[token_T],
            self.in_context_T[token_T],
        )

    def first_in_row(self, marked_T: Bools) -> Int64s:
        """Return the flat index of the first marked token of every row, ``int64 [F]``; the row's end where none is."""
        marked = np.append(np.flatnonzero(marked_T), self.row_starts[-1])
        found_F: Int64s = marked[np.searchsorted(marked, self.row_starts[:-1])]
        return np.minimum(found_F, self.row_starts[1:])


@dataclass(frozen=True)
class WindowSize:
    """How the windows are cut.

    Attributes:
        max_seq_length: Longest window in tokens, question and special tokens included.
        doc_stride: Tokens that two neighbouring windows of a context share.
        pad: Whether every window is padded to ``max_seq_length``.
    """

    max_seq_length: int
    doc_stride: int
    pad: bool


def ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return ``start, start + 1, ...`` of every range, one after the other."""
    ends = np.cumsum(lengths)
    flat: Int64s = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return flat
