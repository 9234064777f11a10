"""From the candidates of each feature to the best spans of each example.

Shape suffixes: E examples, F features (windows) grouped by example, N spans of all examples, n starts or ends of a
feature, K answer types, M pairs of a span and a passage.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.arrays import Bools, Floats, Int32s, Int64s
from portico.mrc.features.labels import TargetType
from portico.mrc.postprocess.search import Candidates, CandidateSearch, Columns
from portico.mrc.postprocess.token_offsets import ExampleColumns, Passages

_FEATURES_PER_BLOCK = 256  # bounds the memory for all pairs of starts and ends
_EXAMPLES_PER_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Spans(Columns):
    """Spans of a context with their scores.

    Attributes:
        chars_N2: Characters ``[start, end)``, ``int32 [N, 2]``; ``(0, 0)`` for "no answer".
        place_N3: Row of the span's feature among the candidates, ranks of its start and its end there, ``int32
            [N, 3]``; the ranks of "no answer" are -1.
        start_logit_N: Start logits.
        end_logit_N: End logits.
        score_N: What spans are ranked by; the sums of both logits in their dtype, unless a scorer is used.
    """

    chars_N2: Int32s
    place_N3: Int32s
    start_logit_N: Floats
    end_logit_N: Floats
    score_N: Floats

    @property
    def is_null_N(self) -> Bools:
        """Which spans represent "no answer", ``bool [N]``."""
        return self.place_N3[:, 1] < 0


@dataclass(frozen=True, eq=False)
class RankedSpans:
    """The best spans of every example, best first, one example after the other.

    ``row_starts`` are the index of the first span of each example, then the number of spans, ``int64 [E + 1]``.
    """

    spans: Spans
    row_starts: Int64s

    @cached_property
    def example_N(self) -> Int64s:
        return np.repeat(np.arange(len(self.row_starts) - 1), self.counts_E)

    @property
    def counts_E(self) -> Int64s:
        return np.diff(self.row_starts)


class SupportedSpanScorers(StrEnum):
    """The scores of PrimeQA's ``scorer_type``.

    Source: PrimeQA, module ``primeqa.mrc.processors.postprocessors.scorers``.
    """

    SCORE_DIFF_BASED = "score_diff_based"
    TARGET_TYPE_WEIGHTED_SCORE_DIFF = "target_type_weighted_score_diff"
    WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF = "weighted_sum_target_type_and_score_diff"

    @classmethod
    def get_supported(cls) -> list[str]:
        return [scorer.value for scorer in cls]


@dataclass(frozen=True)
class ScoreDifference:
    """Scores a span by its margin over "no answer" in its own feature, and by its feature's answer-type logits.

    ``target_type_weight``, 0 to 1, is the weight of the answer type in a weighted sum.
    """

    scorer_type: SupportedSpanScorers
    target_type_weight: float = 0.5

    @property
    def needs_types(self) -> bool:
        return self.scorer_type != SupportedSpanScorers.SCORE_DIFF_BASED

    def __call__(self, span_score: Any, null_span_score: Any, target_type_logits: Any = None) -> Any:
        """Return the score of a span, as PrimeQA calls it, or with arrays the scores of many, ``[N]``.

        Args:
            span_score: Sum of the logits of its first and last token.
            null_span_score: Sum of the start and end logit of the first token of its feature.
            target_type_logits: Logits of the answer types of its feature, the types first; not read by
                ``score_diff_based``.
        """
        difference = span_score - null_span_score
        if not self.needs_types:
            return difference
        if target_type_logits is None:
            raise InputError(f"`scorer_type={self.scorer_type}` needs answer-type logits; give `target_type_logits`.")
        type_logit = target_type_logits[TargetType.SPAN_ANSWER]
        if self.scorer_type == SupportedSpanScorers.TARGET_TYPE_WEIGHTED_SCORE_DIFF:
            return difference * type_logit
        return (1 - self.target_type_weight) * difference + self.target_type_weight * type_logit

    def score_spans(self, features: Candidates, start_logit_Fnn: Floats, end_logit_Fnn: Floats) -> Floats:
        """Return the scores of the spans of features, ``float64 [F, n, n]``."""
        if self.needs_types and features.type_logits_FK.shape[1] == 0:
            raise InputError(
                f"The model returned no answer-type logits, which `scorer_type={self.scorer_type}` needs; use a model "
                "with an extractive head that classifies the answer type, or `scorer_type=score_diff_based`."
            )
        null_F = features.null_start_F.astype(np.float64) + features.null_end_F
        type_logits_KF11 = features.type_logits_FK.astype(np.float64).T[:, :, None, None]
        return self(start_logit_Fnn.astype(np.float64) + end_logit_Fnn, null_F[:, None, None], type_logits_KF11)


def initialize_scorer(scorer_type: str, target_type_weight: float = 0.5) -> ScoreDifference:
    """Return the scorer with a name of :class:`SupportedSpanScorers`; for the arguments see ``ScoreDifference``.

    Raises:
        InputError: If the name is unknown or the weight out of range.
    """
    names = SupportedSpanScorers.get_supported()
    if scorer_type not in names:
        raise InputError(f"Unknown `scorer_type={scorer_type}`; expected one of {', '.join(names)}.")
    if not 0 <= target_type_weight <= 1:
        raise InputError(f"`target_type_weight={target_type_weight}` is out of range; use a number from 0 to 1.")
    return ScoreDifference(SupportedSpanScorers(scorer_type), target_type_weight)


def null_spans(candidates: Candidates, example_F: Int64s) -> Spans:
    """Return "no answer" of every example, with the lowest score in any of its windows; ``E`` spans.

    The candidates are grouped by example: ``example_F`` ascends without gaps.
    """
    score_F = candidates.null_start_F + candidates.null_end_F
    chosen_E = _best_windows(-score_F, example_F)
    return Spans(
        np.zeros((len(chosen_E), 2), np.int32),
        np.stack([chosen_E, *np.full((2, len(chosen_E)), -1)], axis=1).astype(np.int32),
        candidates.null_start_F[chosen_E],
        candidates.null_end_F[chosen_E],
        score_F[chosen_E],
    )


def _best_windows(score_F: Floats, example_F: Int64s) -> Int64s:
    """Return the window of every example with the highest score, the first of equal ones, ``int64 [E]``."""
    first_E = np.flatnonzero(np.diff(example_F, prepend=-1))
    best = np.flatnonzero(score_F == np.maximum.reduceat(score_F, first_E)[example_F])
    return best[np.searchsorted(best, first_E)]


def rank_spans(
    candidates: Candidates,
    search: CandidateSearch,
    nulls: Spans | None = None,
    *,
    num_spans: int | None = None,
    scorer: ScoreDifference | None = None,
    distinct: ExampleColumns | None = None,
) -> RankedSpans:
    """Return the best legal spans of every example.

    A span begins at one of the best starts of a feature and ends at one of its best ends, both in the context, the
    end not before the start, at most ``max_answer_length`` tokens long. Spans of equal score keep the order of their
    feature, then of their start's rank, then of their end's.

    Args:
        candidates: All features, grouped by example; every example has at least one.
        search: What found them.
        nulls: "No answer" of every example, which then competes, behind spans of equal score, and is kept in any
            case; ``None`` leaves it out.
        num_spans: Spans to keep of each example; by default the search's ``n_best_size``.
        scorer: Computes the scores; by default they are the sums of both logits.
        distinct: The examples: keep only the best of spans of the same characters, which overlapping windows share,
            and then of the same text. ``None`` keeps all.
    """
    offsets = search.offsets
    num_spans = search.n_best_size if num_spans is None else num_spans
    example_F = offsets.example_index_F[candidates.feature_index_F]
    columns: list[npt.NDArray[Any]] = []
    num_kept = 0
    counts = []
    for features in _blocks(example_F):
        examples = slice(example_F[features.start], example_F[features.stop - 1] + 1)
        # Duplicates make room for spans beyond the best, so only a feature can be cut short where they are dropped.
        group_F = np.arange(features.stop - features.start) if distinct is not None else example_F[features]
        spans = _legal_spans(candidates[features], search, num_spans, scorer, group_F)
        spans.place_N3[:, 0] += features.start
        example_N = example_F[spans.place_N3[:, 0]] - examples.start
        num_examples = examples.stop - examples.start
        if nulls is not None:
            example_N = np.concatenate([example_N, np.arange(num_examples)])
            spans = Spans.concatenate([spans, nulls[examples]])
        order_N = _order(example_N, spans.score_N)
        if distinct is not None:
            context_N = offsets.context_index_F[candidates.feature_index_F[spans.place_N3[:, 0]]]
            order_N = order_N[_first_occurrences(example_N[order_N], context_N[order_N], spans[order_N])]
        best_N = order_N[_best(example_N[order_N], spans, order_N, num_spans, num_examples)]
        if distinct is not None:
            kept = spans[best_N]
            best_N = best_N[_first_of_text(examples.start + example_N[best_N], context_N[best_N], kept, distinct)]
        if not columns:
            # Room for all that there can be, since joining blocks takes twice the memory; unwritten pages take none.
            most = (example_F[-1] + 1) * (num_spans + (nulls is not None))
            columns = [np.empty((most, *column.shape[1:]), column.dtype) for column in spans.columns()]
        for whole, column in zip(columns, spans[best_N].columns(), strict=True):
            whole[num_kept : num_kept + len(column)] = column
        num_kept += len(best_N)
        counts.append(np.bincount(example_N[best_N], minlength=num_examples))
    row_starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return RankedSpans(Spans(*(whole[:num_kept] for whole in columns)), row_starts)


def _blocks(example_F: Int64s) -> Iterator[slice]:
    """Split the features into blocks that hold examples whole."""
    last = np.flatnonzero(np.diff(example_F, append=example_F[-1] + 1)) + 1  # where an example's features end
    start = 0
    while start < len(example_F):
        stop = int(last[np.searchsorted(last[:-1], start + _FEATURES_PER_BLOCK)])
        yield slice(start, stop)
        start = stop


def _order(example_N: Int64s, score_N: Floats) -> Int64s:
    """Return the spans in the order of their examples, best first; equal scores keep their order."""
    # Whole numbers of example and rank are sorted several times as fast as np.lexsort sorts the two.
    falling_N = np.argsort(-score_N)
    ordered_N = score_N[falling_N]
    rank_N = np.empty(len(score_N), np.int64)
    rank_N[falling_N] = np.cumsum(np.append(False, ordered_N[1:] != ordered_N[:-1])[: len(score_N)])
    return np.argsort(example_N * len(score_N) + rank_N, kind="stable")


def _legal_spans(
    block: Candidates, search: CandidateSearch, num_spans: int, scorer: ScoreDifference | None, group_F: Int64s
) -> Spans:
    """Return the legal pairs of a start and an end that can be among the best of their group of features."""
    offsets = search.offsets
    feature_index_F = block.feature_index_F
    begin_Fn = offsets.begins(block.start_token_Fn, feature_index_F)
    end_Fn = offsets.ends(block.end_token_Fn, feature_index_F)
    # Every start goes with every end, or with its own only.
    ends = np.s_[:, :, None] if search.paired else np.s_[:, None, :]
    # The extent of a pair outside the context is made negative, and a negative number without its sign is too long.
    highest = np.iinfo(block.end_token_Fn.dtype).max
    start_Fn = np.where(begin_Fn >= 0, block.start_token_Fn, block.start_token_Fn.dtype.type(highest))
    end_token_Fn = np.where(end_Fn >= 0, block.end_token_Fn, block.end_token_Fn.dtype.type(-1))
    extent_Fnn = end_token_Fn[ends] - start_Fn[:, :, None]
    legal_Fnn = extent_Fnn.view(f"u{extent_Fnn.itemsize}") < min(search.max_answer_length, highest)
    start_logit_Fnn, end_logit_Fnn = block.start_logit_Fn[:, :, None], block.end_logit_Fn[ends]
    if scorer is None:
        score_Fnn: Floats = start_logit_Fnn + end_logit_Fnn
    else:
        score_Fnn = scorer.score_spans(block, start_logit_Fnn, end_logit_Fnn)
    flat_N = np.flatnonzero(_among_the_best(score_Fnn, legal_Fnn, num_spans, group_F))
    start_N, rank_N = np.divmod(flat_N, legal_Fnn.shape[2])  # the place of the start in [F, n], and its end's rank
    feature_N, start_rank_N = np.divmod(start_N, begin_Fn.shape[1])
    end_rank_N = start_rank_N if search.paired else rank_N
    end_N = start_N if search.paired else feature_N * end_Fn.shape[1] + rank_N
    return Spans(
        np.stack([begin_Fn.ravel()[start_N], end_Fn.ravel()[end_N]], axis=1),
        np.stack([feature_N, start_rank_N, end_rank_N], axis=1).astype(np.int32),
        block.start_logit_Fn.ravel()[start_N],
        block.end_logit_Fn.ravel()[end_N],
        score_Fnn.ravel()[flat_N],
    )


def _among_the_best(score_Fnn: Floats, legal_Fnn: Bools, num_spans: int, group_F: Int64s) -> Bools:
    """Return which legal pairs to sort: they include the best of every group of features, and few others."""
    num_pairs = legal_Fnn[0].size
    if num_pairs <= num_spans:
        return legal_Fnn
    # In float32, whose rounding keeps the order: a pair that ties with the n-th best when rounded is kept as well.
    # numpy sorts float32 in half the time of float64, and in three quarters of the time of np.partition.
    # Infinite ceilings take a fifth of the time of np.where, which mispredicts every other pair.
    ceiling_Fnn = (legal_Fnn - np.float32(0.5)) * np.float32(np.inf)
    with np.errstate(over="ignore"):
        bounded_Fnn = np.minimum(score_Fnn.astype(np.float32, copy=False), ceiling_Fnn, out=ceiling_Fnn)
    rows_FP = bounded_Fnn.reshape(-1, num_pairs)
    least_F = np.sort(rows_FP, axis=1)[:, num_pairs - num_spans]
    # A score below the n-th best of one feature is not among the n best of its group.
    first = np.flatnonzero(np.diff(group_F, prepend=group_F[0] - 1))
    least_F = np.maximum.reduceat(least_F, first).repeat(np.diff(first, append=len(group_F)))
    return legal_Fnn & (bounded_Fnn >= least_F[:, None, None])


def _first_occurrences(example_N: Int64s, context_N: Int64s, spans: Spans) -> Int64s:
    """Return, in ascending order, the spans that do not repeat the characters of an earlier one."""
    keys = (example_N, context_N, *spans.chars_N2.T, spans.is_null_N)
    order_N = np.lexsort(keys)  # stable, so that the first of equal ones comes first
    is_new_N = np.zeros(len(order_N), np.bool_)
    is_new_N[:1] = True
    for key_N in keys:
        is_new_N[1:] |= key_N[order_N[1:]] != key_N[order_N[:-1]]
    return np.sort(order_N[is_new_N])


def _first_of_text(example_N: Int64s, context_N: Int64s, spans: Spans, examples: ExampleColumns) -> Bools:
    """Return which spans do not repeat the text of an earlier one of their example; "no answer" repeats none."""
    start_N, end_N = spans.chars_N2.T
    # Only spans of one length can have one text: few texts are read.
    length_N = 2 * (end_N.astype(np.int64) - start_N) + spans.is_null_N
    key_N = example_N * (length_N.max(initial=0) + 1) + length_N
    order_N = np.argsort(key_N, kind="stable")
    equal = np.flatnonzero(key_N[order_N[1:]] == key_N[order_N[:-1]])
    rows = np.unique(order_N[np.concatenate([equal, equal + 1])])
    texts = examples.texts(example_N[rows], context_N[rows], spans.chars_N2[rows])
    is_first_N = np.ones(len(spans), np.bool_)
    first: dict[tuple[int, str], int] = {}
    for row, key in zip(rows.tolist(), zip(key_N[rows].tolist(), texts, strict=True), strict=True):
        is_first_N[row] = first.setdefault(key, row) == row
    return is_first_N


def _best(example_N: Int64s, spans: Spans, order_N: Int64s, num_spans: int, num_examples: int) -> Bools:
    """Return which of the ordered spans to keep; "no answer" is kept where it competes."""
    first_E = np.searchsorted(example_N, np.arange(num_examples))
    kept_N = np.arange(len(order_N)) < (first_E + num_spans)[example_N]
    # utils_qa.py adds "no answer" if it fell out of the n best, but not if one of them has the characters (0, 0).
    null_N = np.flatnonzero(spans.is_null_N[order_N])
    if not kept_N[null_N].all():
        start_N, end_N = spans.chars_N2.T
        listed_N = kept_N & ((start_N | end_N) == 0)[order_N]
        has_null_E = np.bincount(example_N[listed_N], minlength=num_examples) > 0
        kept_N[null_N] |= ~has_null_E[example_N[null_N]]
    return kept_N


def span_probabilities(
    ranked: RankedSpans, wide_E: Bools | None = None, temperature: float = 1.0
) -> npt.NDArray[np.float64]:
    """Return the softmax of the scores over the spans of each example, ``float64 [N]``.

    Examples with the same number of spans are computed as one array: numpy sums each of its rows in the same order as
    it sums that row alone, so the result does not depend on how examples are batched. Those in ``wide_E`` are computed
    in float64 instead of the dtype of their logits. Scores are divided by the temperature.
    """
    wide_E = np.zeros(len(ranked.counts_E), np.bool_) if wide_E is None else wide_E
    score_N = ranked.spans.score_N if temperature == 1 else ranked.spans.score_N / temperature
    probability_N = np.empty(len(ranked.spans), np.float64)
    kind_E = 2 * ranked.counts_E + wide_E
    for kind in np.unique(kind_E).tolist():
        (count, wide) = divmod(kind, 2)
        rows = np.flatnonzero(kind_E == kind)
        for first in range(0, len(rows) if count else 0, _EXAMPLES_PER_BLOCK):
            spans = ranked.row_starts[rows[first : first + _EXAMPLES_PER_BLOCK], None] + np.arange(count)
            score = score_N[spans].astype(np.float64) if wide else score_N[spans]
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            probability_N[spans] = weight / weight.sum(axis=1, keepdims=True)
    return probability_N


def passage_indices(chars_N2: Int32s, example_N: Int64s, passages_E: Passages) -> Int64s:
    """Return the first passage of its example that contains the whole span, ``int64 [N]``, -1 for none.

    ``example_N``, the example of each span, ascends.
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
    contains_M = (starts[flat_M] <= chars_N2[span_M, 0]) & (chars_N2[span_M, 1] <= ends[flat_M])
    index_N = np.full(len(example_N), -1, np.int64)
    # Assigned from the last to the first, so that the first of several passages stays.
    index_N[span_M[contains_M][::-1]] = passage_M[contains_M][::-1]
    return index_N


def answer_types(type_logits_FK: Floats, example_F: Int64s) -> Int64s:
    """Return the answer type of every example, ``int64 [E]``: a span, a whole passage, yes or no.

    The window with the lowest probability of ``NO_ANSWER`` decides, the first of equal ones; where ``K`` is 0, all
    answers are spans. Whether there is an answer at all is decided by the score of "no answer" instead. ``example_F``
    ascends without gaps.
    """
    if type_logits_FK.shape[1] == 0:
        return np.full(example_F[-1] + 1, TargetType.SPAN_ANSWER, np.int64)
    logits_FK = type_logits_FK.astype(np.float64)
    evidence_FK = np.delete(logits_FK, TargetType.NO_ANSWER, axis=1)
    peak_F = evidence_FK.max(axis=1)
    # The log-odds of an answer: the logarithm of the sum of exponentials minus the logit of NO_ANSWER.
    evidence_F = peak_F + np.log(np.exp(evidence_FK - peak_F[:, None]).sum(axis=1))
    type_E = logits_FK[_best_windows(evidence_F - logits_FK[:, TargetType.NO_ANSWER], example_F)].argmax(axis=1)
    return np.where(type_E == TargetType.NO_ANSWER, TargetType.SPAN_ANSWER, type_E)
