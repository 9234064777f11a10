"""Scored spans, in columns.

Shape suffixes: E examples, N spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from portico.mrc.arrays import Bools, Floats, Int32s, Int64s


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of a context with their scores.

    Attributes:
        chars_N2: Characters ``[start, end)``, ``int32 [N, 2]``; ``(0, 0)`` for "no answer".
        place_N3: Row of the span's feature among the candidates, ranks of its start and its end there, ``int32
            [N, 3]``; the ranks of "no answer" are -1.
        start_logit_N: Start logits.
        end_logit_N: End logits.
        score_N: What spans are ranked by; their sums in the same dtype, unless a scorer says otherwise.
    """

    chars_N2: Int32s
    place_N3: Int32s
    start_logit_N: Floats
    end_logit_N: Floats
    score_N: Floats

    def __len__(self) -> int:
        return len(self.score_N)

    def __getitem__(self, spans: Int64s | Bools | slice) -> "Spans":
        return Spans(*(column[spans] for column in self.columns()))

    def columns(self) -> list[np.ndarray[Any, Any]]:
        """Return the arrays in order of declaration."""
        return [getattr(self, field.name) for field in fields(self)]

    @staticmethod
    def concatenate(parts: "Sequence[Spans]") -> "Spans":
        """Return the spans of all parts."""
        return Spans(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


@dataclass(frozen=True, eq=False)
class RankedSpans:
    """The best spans of every example, best first.

    Attributes:
        spans: The spans of all examples, one example after the other.
        row_starts: Where those of each example begin and of the last one end, ``int64 [E + 1]``.
    """

    spans: Spans
    row_starts: Int64s

    @cached_property
    def example_N(self) -> Int64s:
        """The example of each span, ``int64 [N]``."""
        return np.repeat(np.arange(len(self.row_starts) - 1), self.counts_E)

    @property
    def counts_E(self) -> Int64s:
        """Spans of each example, ``int64 [E]``."""
        return np.diff(self.row_starts)

    def select(self, spans_N: Bools) -> "RankedSpans":
        """Return the spans of a mask, ``bool [N]``, in their order."""
        kept = np.concatenate([[0], np.cumsum(spans_N)])
        return RankedSpans(self.spans[spans_N], kept[self.row_starts])


def is_null(spans: Spans) -> Bools:
    """Tell which spans stand for "no answer", ``bool [N]``."""
    null_N: Bools = spans.place_N3[:, 1] < 0
    return null_N
