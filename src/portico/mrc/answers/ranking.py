"""From the best starts and ends of every feature to the best spans of every example.

Shape suffixes: E examples, F features (windows) grouped by example, N spans of all examples, n starts or ends of a
feature.
"""

from collections.abc import Iterator

import numpy as np

from portico.mrc.answers.candidates import Candidates
from portico.mrc.answers.offsets import TokenOffsets
from portico.mrc.answers.scorers import SpanScorer, sum_of_logits
from portico.mrc.answers.span_table import RankedSpans, Spans, is_null
from portico.mrc.arrays import Bools, Floats, Int64s

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
        np.stack([chosen_E, *np.full((2, len(chosen_E)), -1)], axis=1).astype(np.int32),
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
    scorer: SpanScorer = sum_of_logits,
    distinct: bool = False,
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
        scorer: Gives the scores.
        distinct: Keep only the best of spans of the same characters, which windows that overlap share.
    """
    example_F = offsets.example_index_F[candidates.feature_index_F]
    blocks, counts = [], []
    for features in _blocks(example_F):
        examples = slice(example_F[features.start], example_F[features.stop - 1] + 1)
        spans = _legal_spans(
            candidates,
            features,
            offsets,
            scorer,
            n_best_size=n_best_size,
            max_answer_length=max_answer_length,
        )
        example_N = example_F[spans.place_N3[:, 0]] - examples.start
        num_examples = examples.stop - examples.start
        if nulls is not None:
            example_N = np.concatenate([example_N, np.arange(num_examples)])
            spans = Spans.concatenate([spans, nulls[examples]])
        order_N = np.lexsort((-spans.score_N, example_N))  # stable: equal scores keep their order
        if distinct:
            context_N = offsets.context_index_F[candidates.feature_index_F[spans.place_N3[:, 0]]]
            order_N = order_N[_first_of_their_kind(example_N[order_N], context_N[order_N], spans[order_N])]
        best_N = _best(order_N, example_N, spans, n_best_size, num_examples)
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


def _legal_spans(
    candidates: Candidates,
    features: slice,
    offsets: TokenOffsets,
    scorer: SpanScorer,
    *,
    n_best_size: int,
    max_answer_length: int,
) -> Spans:
    """Return the legal pairs of a start and an end of some features, as far as they are among the best of theirs."""
    block = candidates[features]
    begin_Fn = offsets.chars(block.starts.token_Fn, block.feature_index_F)[..., 0]
    end_Fn = offsets.chars(block.ends.token_Fn, block.feature_index_F)[..., 1]
    extent_Fnn = block.ends.token_Fn[:, None, :] - block.starts.token_Fn[:, :, None]
    legal_Fnn = (begin_Fn >= 0)[:, :, None] & (end_Fn >= 0)[:, None, :]
    legal_Fnn &= (extent_Fnn >= 0) & (extent_Fnn < max_answer_length)
    if block.paired:
        legal_Fnn &= np.eye(begin_Fn.shape[1], dtype=np.bool_)
    feature_N, start_N, end_N = np.nonzero(legal_Fnn)
    start_logit_N = block.starts.logit_Fn[feature_N, start_N]
    end_logit_N = block.ends.logit_Fn[feature_N, end_N]
    score_N = scorer(block, feature_N, start_logit_N, end_logit_N)
    best_N = _among_the_best(score_N, legal_Fnn, n_best_size)
    feature_N, start_N, end_N = feature_N[best_N], start_N[best_N], end_N[best_N]
    return Spans(
        np.stack([begin_Fn[feature_N, start_N], end_Fn[feature_N, end_N]], axis=1),
        np.stack([feature_N + features.start, start_N, end_N], axis=1).astype(np.int32),
        start_logit_N[best_N],
        end_logit_N[best_N],
        score_N[best_N],
    )


def _among_the_best(score_N: Floats, legal_Fnn: Bools, n_best_size: int) -> Int64s:
    """Return legal pairs that hold the n best of every feature, ``int64``, ascending.

    Most pairs are none of these, and what is not sorted costs nothing.
    """
    num_pairs = legal_Fnn[0].size
    if num_pairs <= n_best_size:
        return np.arange(len(score_N))
    # In float32, whose rounding keeps the order: a pair that ties with the n-th best when rounded is kept as well.
    # numpy takes many times as long to partition rows of float64 with equal values.
    scores_Fnn = np.full(legal_Fnn.shape, -np.inf, np.float32)
    with np.errstate(over="ignore"):
        scores_Fnn[legal_Fnn] = score_N
    flat_FP = scores_Fnn.reshape(-1, num_pairs)
    least_F1 = np.partition(flat_FP, num_pairs - n_best_size, axis=1)[:, num_pairs - n_best_size, None]
    return np.flatnonzero((flat_FP >= least_F1)[legal_Fnn.reshape(-1, num_pairs)])


def _first_of_their_kind(example_N: Int64s, context_N: Int64s, spans: Spans) -> Int64s:
    """Return, in ascending order, which spans are not those characters of a context that came before."""
    kinds = (example_N, context_N, *spans.chars_N2.T, is_null(spans))
    order_N = np.lexsort(kinds)  # stable, so that the first of a kind comes first
    is_new_N = np.zeros(len(order_N), np.bool_)
    is_new_N[:1] = True
    for kind_N in kinds:
        is_new_N[1:] |= kind_N[order_N[1:]] != kind_N[order_N[:-1]]
    return np.sort(order_N[is_new_N])


def _best(order_N: Int64s, example_N: Int64s, spans: Spans, n_best_size: int, num_examples: int) -> Int64s:
    """Return which spans to keep, example by example, best first; "no answer" is kept where it competes."""
    example_N, spans = example_N[order_N], spans[order_N]
    first_E = np.searchsorted(example_N, np.arange(num_examples))
    kept_N = np.arange(len(order_N)) - first_E[example_N] < n_best_size
    # transformers takes a span without characters at the very beginning for "no answer".
    listed_N = kept_N & (spans.chars_N2 == 0).all(axis=1)
    has_null_E = np.bincount(example_N[listed_N], minlength=num_examples) > 0
    kept_N |= is_null(spans) & ~has_null_E[example_N]
    kept: Int64s = order_N[kept_N]
    return kept
