"""Which passage of its document a span lies in.

Shape suffixes: E examples, N spans, M pairs of a span and a passage.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from portico.mrc.arrays import Int32s, Int64s

Passages = Sequence[Mapping[str, Sequence[int]]]
"""First characters (``start_positions``) and those after the last (``end_positions``) of each example's passages."""


def passage_indices(chars_N2: Int32s, example_N: Int64s, passages_E: Passages) -> Int64s:
    """Return the first passage of its example that holds the whole span, ``int64 [N]``, -1 for none.

    Args:
        chars_N2: Characters ``[start, end)`` of each span, ``int32 [N, 2]``.
        example_N: The example of each span, ``int64 [N]``, ascending.
        passages_E: The passages of every example.
    """
    counts_E = np.array([len(passages["start_positions"]) for passages in passages_E], np.int64)
    starts, ends = (
        np.array([position for passages in passages_E for position in passages[name]], np.int64)
        for name in ("start_positions", "end_positions")
    )
    first_E = np.cumsum(counts_E) - counts_E
    span_M = np.repeat(np.arange(len(example_N)), counts_E[example_N])
    first_N = np.cumsum(counts_E[example_N]) - counts_E[example_N]
    passage_M = np.arange(len(span_M)) - first_N[span_M]
    flat_M = first_E[example_N[span_M]] + passage_M
    holds_M = (starts[flat_M] <= chars_N2[span_M, 0]) & (chars_N2[span_M, 1] <= ends[flat_M])
    index_N = np.full(len(example_N), -1, np.int64)
    # Assigned from the last to the first, so that of several passages the first stays.
    index_N[span_M[holds_M][::-1]] = passage_M[holds_M][::-1]
    return index_N
