"""From the best starts and ends of every feature to the best spans of every example.

Shape suffixes: E examples, F features (windows) grouped by example, N spans of all examples, n starts or ends of a
feature.
"""

from collections.abc import Iterator

import numpy as np

from portico.mrc.answers.offsets import TokenOffsets
from portico.mrc.answers.span_table import RankedSpans, Spans
from portico.mrc.answers.spans import Candidates
from portico.mrc.arrays import Int32s, Int64s, Tokens

_FEATURES_PER_BLOCK = 2048  # bounds the memory for all pairs of starts and ends


def null_spans(candidates: Candidates, example_F: Int64s) -> Spans:
    """Return "no answer" of every example, with the lowest score any of its windows gives; ``E`` spans.

    Args:
        candidates: All features, grouped by example.
        example_F: The example of each, ``int64 [F]``: ascending, none left out.
    """
    first_E = np.flatnonzero(np.diff(example_F, prepend=-1))
    score_F = candidates.starts.null_F + candidates.ends.null_F
    least = np.flatnonzero(score_F == np.minimum.reduceat(score_F, first_E)[example_F])
    chosen_E = least[np.searchsorted(least, first_E)]  # of equal windows the first counts
    return Spans(
        np.zeros((len(chosen_E), 2), np.int32),
        candidates.starts.null_F[chosen_E],
        candidates.ends.null_F[chosen_E],
        score_F[chosen_E],
    )


def rank_spans(
    candidates: Candidates,
    offsets: TokenOffsets,
    nulls: Spans | None,
    *,
    n_best_size: int,
    max_answer_length: int,
) -> RankedSpans:
    """Return the best legal spans of every example.

    A span begins at one of the best starts of a feature and ends at one of its best ends, both in the context, the
    end not before the start, at most `max_answer_length` tokens long. Spans of equal score keep the order of their
    feature, then of their start's rank, then of their end's.

    Args:
        candidates: All features, grouped by example; every example has at least one.
        offsets: Where the tokens lie in the context.
        nulls: "No answer" of every example, which then competes, behind spans of equal score, and is kept in any
            case; ``None`` leaves it out.
        n_best_size: Spans to keep of each example.
        max_answer_length: In tokens.
    """
    example_F = offsets.example_index_F[candidates.feature_index_F]
    blocks, counts = [], []
    for features in _blocks(example_F):
        examples = slice(example_F[features.start], example_F[features.stop - 1] + 1)
        feature_N, spans = _legal_spans(candidates[features], offsets, max_answer_length)
        example_N = example_F[features][feature_N] - examples.start
        num_examples = examples.stop - examples.start
        if nulls is not None:
            example_N = np.concatenate([example_N, np.arange(num_examples)])
            spans = Spans.concatenate([spans, nulls[examples]])
        best_N = _best(example_N, spans, n_best_size, num_examples, num_nulls=0 if nulls is None else num_examples)
        blocks.append(spans[best_N])
        counts.append(np.bincount(example_N[best_N], minlength=num_examples))
    return RankedSpans(Spans.concatenate(blocks), np.concatenate([[0], np.cumsum(np.concatenate(counts))]))


def _blocks(example_F: Int64s) -> Iterator[slice]:
    """Split the features into blocks that hold examples whole."""
    last = np.flatnonzero(np.diff(example_F, append=example_F[-1] + 1)) + 1  # where an example's features end
    start = 0
    while start < len(example_F):
        stop = int(last[np.searchsorted(last[:-1], start + _FEATURES_PER_BLOCK)])
        yield slice(start, stop)
        start = stop


def _legal_spans(block: Candidates, offsets: TokenOffsets, max_answer_length: int) -> tuple[Int64s, Spans]:
    """Return the legal pairs of a start and an end with the row of their feature in the block."""
    begin_Fn = _chars(block.starts.token_Fn, block.feature_index_F, offsets)[..., 0]
    end_Fn = _chars(block.ends.token_Fn, block.feature_index_F, offsets)[..., 1]
    extent_Fnn = block.ends.token_Fn[:, None, :] - block.starts.token_Fn[:, :, None]
    legal_Fnn = (begin_Fn >= 0)[:, :, None] & (end_Fn >= 0)[:, None, :]
    legal_Fnn &= (extent_Fnn >= 0) & (extent_Fnn < max_answer_length)
    feature_N, start_N, end_N = np.nonzero(legal_Fnn)
    start_logit_N = block.starts.logit_Fn[feature_N, start_N]
    end_logit_N = block.ends.logit_Fn[feature_N, end_N]
    chars_N2 = np.stack([begin_Fn[feature_N, start_N], end_Fn[feature_N, end_N]], axis=1)
    return feature_N, Spans(chars_N2, start_logit_N, end_logit_N, start_logit_N + end_logit_N)


def _chars(token_Fn: Tokens, feature_index_F: Int64s, offsets: TokenOffsets) -> Int32s:
    """Return the characters of the tokens, ``int32 [F, n, 2]``; -1 for tokens outside the context or the row."""
    start_F1 = offsets.row_starts[feature_index_F, None]
    flat_Fn = start_F1 + token_Fn
    in_row_Fn = (token_Fn >= 0) & (flat_Fn < offsets.row_starts[feature_index_F + 1, None])
    chars_Fn2 = offsets.char_offsets_T2[np.where(in_row_Fn, flat_Fn, start_F1)]
    return np.where(in_row_Fn[..., None], chars_Fn2, np.int32(-1))


def _best(example_N: Int64s, spans: Spans, n_best_size: int, num_examples: int, *, num_nulls: int) -> Int64s:
    """Return which spans to keep, example by example, best first; the last `num_nulls` stand for "no answer"."""
    order_N = np.lexsort((-spans.score_N, example_N))  # stable: equal scores keep their order
    example_N = example_N[order_N]
    first_E = np.searchsorted(example_N, np.arange(num_examples))
    kept_N = np.arange(len(order_N)) - first_E[example_N] < n_best_size
    if num_nulls:
        is_null_N = order_N >= len(order_N) - num_nulls
        listed_N = kept_N & (spans.chars_N2[order_N] == 0).all(axis=1)
        has_null_E = np.bincount(example_N[listed_N], minlength=num_examples) > 0
        kept_N |= is_null_N & ~has_null_E[example_N]
    kept: Int64s = order_N[kept_N]
    return kept
