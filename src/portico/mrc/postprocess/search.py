"""From the outputs of a batch to the tokens that can begin and end an answer in each of its windows.

Shape suffixes: B features (windows) of a batch, F features, L tokens of the longest row, K answer types, n tokens
kept, S starts and P pairs of a start and an end in a beam.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Bools, Floats, Int64s, Tokens
from portico.mrc.features.labels import TargetType
from portico.mrc.postprocess.token_offsets import TokenOffsets

Ties: TypeAlias = Literal["deterministic", "hf"]
"""The order of equal logits: the lower index first, or as numpy's unstable sort happens to leave them."""

TokenOrder: TypeAlias = Ties | Literal["primeqa"]
"""As ``Ties``, or as numpy's unstable sort leaves Python floats."""

_HF_PADDING = -100  # what transformers' Trainer pads gathered logits with
_ROWS_PER_BLOCK = 64  # bounds the memory for all spans of the exhaustive search


@dataclass(frozen=True, eq=False)
class Columns:
    """A table: arrays of equal length, with one row for each feature or span."""

    def columns(self) -> list[np.ndarray[Any, Any]]:
        return [getattr(self, field.name) for field in fields(self)]

    def __len__(self) -> int:
        return len(self.columns()[0])

    def __getitem__(self, rows: Int64s | Bools | slice) -> Self:
        return type(self)(*(column[rows] for column in self.columns()))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


@dataclass(frozen=True, eq=False)
class Candidates(Columns):
    """The best start and end tokens of some features; what processes exchange instead of logits.

    Attributes:
        feature_index_F: Which features, ``int64 [F]``.
        start_token_Fn: Start tokens, best first, -1 where a row has fewer than ``n``, ``int16`` or ``int32 [F, n]``;
            what follows is in the dtype of the model's outputs, and ends are as starts.
        start_logit_Fn: Their logits, ``[F, n]``.
        null_start_F: Start logit of the token that represents "no answer", ``[F]``.
        start_stdev_Fn: Standard deviations of the start logits, ``[F, n]``, or ``[F, 0]`` without a confidence head.
        type_logits_FK: Logits of the answer types (:class:`~portico.mrc.features.labels.TargetType`), ``[F, K]``;
            ``K`` is 0 without a classifier of answer types.
        similarity_F1: Similarity of question and passage, ``[F, 1]``, or ``[F, 0]`` without a confidence head.
    """

    feature_index_F: Int64s
    start_token_Fn: Tokens
    start_logit_Fn: Floats
    null_start_F: Floats
    start_stdev_Fn: Floats
    end_token_Fn: Tokens
    end_logit_Fn: Floats
    null_end_F: Floats
    end_stdev_Fn: Floats
    type_logits_FK: Floats
    similarity_F1: Floats


class CandidateSearch:
    """Finds the best start and end tokens of each row of a batch.

    Args:
        offsets: Which characters the tokens of all features cover.
        n_best_size: Starts and ends, or pairs of them, to keep of each feature, at least 1.
        max_answer_length: Longest answer, in tokens.
        method: A ``TokenOrder`` takes the best starts and, independently, the best ends, as transformers and PrimeQA
            do, and says whose order of equal logits and of padding to follow. ``"exhaustive"`` takes the best of all
            legal spans, at several times the cost: where few starts and ends are kept, the best span may join two
            tokens that are not among them. Of equal scores the lower start, then the lower end comes first.
            ``"beam_search"`` takes the best legal pairs in the beams of a beam-search head.
    """

    def __init__(
        self,
        offsets: TokenOffsets,
        n_best_size: int,
        max_answer_length: int,
        method: TokenOrder | Literal["exhaustive", "beam_search"],
    ) -> None:
        self.offsets = offsets
        self.n_best_size = n_best_size
        self.max_answer_length = max_answer_length
        self.paired = method in ("exhaustive", "beam_search")
        """Whether start ``i`` goes with end ``i`` only; otherwise every start may go with every end."""
        self._method = method
        # transformers and PrimeQA score "no answer" at token 0, whatever token that is.
        self._null_token_F = offsets.null_token_F if method in ("deterministic", "exhaustive") else None
        self._longest = int(offsets.lengths_F.max())
        self._token_dtype = np.dtype(np.int16 if self._longest <= np.iinfo(np.int16).max else np.int32)

    def __call__(self, outputs: Sequence[Any], feature_indices_B: Int64s) -> Candidates:
        """Return the candidates of a batch.

        Args:
            outputs: Start and end logits, ``float [B, L]``, then optionally the logits of the answer types,
                ``float [B, K]``, then optionally start deviations, end deviations and similarities; other outputs
                (hidden states) are ignored. Of a beam-search head: log-probabilities of the ``S`` best starts,
                ``float [B, S]``, and their tokens, ``int [B, S]``; the same for the best ends of each start, one start
                after the other, ``[B, P]``; scores of "no answer", ``float [B]``.
            feature_indices_B: Which feature each row is, ``int64 [B]``.

        Raises:
            InputError: If the outputs have other shapes, or a value is not finite.
        """
        if self._method == "beam_search":
            return self._search_beams(outputs, feature_indices_B)
        starts_BL, ends_BL, types_BK, start_stdevs_BL, end_stdevs_BL, similarity_B1 = _span_outputs(outputs)
        _check_finite("start logit", "token", starts_BL, feature_indices_B)
        _check_finite("end logit", "token", ends_BL, feature_indices_B)
        _check_finite("answer-type logit", "type", types_BK, feature_indices_B)
        if self._method == "exhaustive":
            top_starts_Bn, top_ends_Bn = self._best_spans(starts_BL, ends_BL, feature_indices_B)
        else:
            top_starts_Bn, top_ends_Bn = (
                self._best_tokens(logits_BL, feature_indices_B) for logits_BL in (starts_BL, ends_BL)
            )
        null_token_B = np.zeros_like(feature_indices_B)
        if self._null_token_F is not None:
            null_token_B = self._null_token_F[feature_indices_B]
        return Candidates(
            feature_indices_B,
            *self._keep_best(top_starts_Bn, starts_BL, start_stdevs_BL, null_token_B),
            *self._keep_best(top_ends_Bn, ends_BL, end_stdevs_BL, null_token_B),
            types_BK,
            similarity_B1,
        )

    def _keep_best(
        self, top_Bn: Int64s, logits_BL: Floats, stdevs_BL: Floats, null_token_B: Int64s
    ) -> tuple[Tokens, Floats, Floats, Floats]:
        num_missing = self.n_best_size - top_Bn.shape[1]
        if num_missing > 0:  # np.pad costs time even where it adds nothing
            top_Bn = np.pad(top_Bn, ((0, 0), (0, num_missing)), constant_values=-1)
        in_row_Bn = np.minimum(top_Bn, logits_BL.shape[1] - 1)  # tokens beyond the batch are padding
        logit_Bn = _take(logits_BL, in_row_Bn)
        stdev_Bn = _take(stdevs_BL, in_row_Bn) if stdevs_BL.shape[1] else stdevs_BL
        # A copy, which does not hold the whole batch in memory.
        null_B = logits_BL[np.arange(len(logits_BL)), null_token_B]
        return top_Bn.astype(self._token_dtype), logit_Bn, null_B, stdev_Bn

    def _best_tokens(self, logits_BL: Floats, feature_indices_B: Int64s) -> Int64s:
        """Return the best tokens of each row, best first, -1 for none, at most ``n``, ``int64 [B, n]``."""
        if self._method == "primeqa":
            # PrimeQA cuts off the padding before it sorts.
            lengths_B = np.minimum(self.offsets.lengths_F[feature_indices_B], logits_BL.shape[1])
            tokens_Bn = np.full((len(lengths_B), self.n_best_size), -1)
            different = np.unique(lengths_B)
            for length in different:
                rows = np.flatnonzero(lengths_B == length) if len(different) > 1 else slice(None)
                top = top_tokens(logits_BL[rows, :length], self.n_best_size, "primeqa")
                tokens_Bn[rows, : top.shape[1]] = top
            return tokens_Bn
        if self._method != "hf":
            # Padding is not ranked, so that the other features of a batch change no answer.
            lengths_B1 = self.offsets.lengths_F[feature_indices_B, None]
            if (lengths_B1 < logits_BL.shape[1]).any():
                logits_BL = np.where(np.arange(logits_BL.shape[1]) < lengths_B1, logits_BL, -np.inf)
            top_Bn = top_tokens(logits_BL, self.n_best_size, "deterministic")
            return np.where(top_Bn < lengths_B1, top_Bn, -1)
        num_missing = self._longest - logits_BL.shape[1]
        if num_missing > 0:
            # transformers sorts rows after padding them to the longest batch, which can reorder equal logits.
            logits_BL = np.pad(logits_BL, ((0, 0), (0, num_missing)), constant_values=_HF_PADDING)
        top_Bn = top_tokens(logits_BL, self.n_best_size, "hf")
        # Padding may take places in the list, as it does in transformers.
        return np.where(top_Bn < self._longest, top_Bn, -1)

    def _best_spans(self, starts_BL: Floats, ends_BL: Floats, feature_indices_B: Int64s) -> tuple[Int64s, Int64s]:
        """Return first and last tokens of the best legal spans, as ``_best_tokens`` does; ``M`` lengths of a span."""
        num_tokens = starts_BL.shape[1]
        num_lengths = min(self.max_answer_length, num_tokens)
        found = []
        for rows in np.array_split(np.arange(len(starts_BL)), -(-len(starts_BL) // _ROWS_PER_BLOCK)):
            tokens_BL = np.tile(np.arange(num_tokens), (len(rows), 1))
            features = feature_indices_B[rows]
            legal_starts_BL = np.where(self.offsets.begins(tokens_BL, features) >= 0, starts_BL[rows], -np.inf)
            legal_ends_BL = np.where(self.offsets.ends(tokens_BL, features) >= 0, ends_BL[rows], -np.inf)
            padded_BL = np.pad(legal_ends_BL, ((0, 0), (0, num_lengths - 1)), constant_values=-np.inf)
            # A view, so that the ends of all lengths are not copied before they are added.
            ends_BLM = np.lib.stride_tricks.sliding_window_view(padded_BL, num_lengths, axis=1)
            scores_BS = (legal_starts_BL[:, :, None] + ends_BLM).reshape(len(rows), -1)
            best_Bn = top_tokens(scores_BS, self.n_best_size, "deterministic")
            legal_Bn = np.take_along_axis(scores_BS, best_Bn, axis=1) > -np.inf
            start_Bn, extent_Bn = np.divmod(best_Bn, num_lengths)
            found.append((np.where(legal_Bn, start_Bn, -1), np.where(legal_Bn, start_Bn + extent_Bn, -1)))
        starts, ends = zip(*found, strict=True)
        return np.concatenate(starts), np.concatenate(ends)

    def _search_beams(self, outputs: Sequence[Any], feature_indices_B: Int64s) -> Candidates:
        start_scores_BS, starts_BS, end_scores_BP, ends_BP, null_B = _beam_outputs(outputs)
        _check_finite("start score", "place", start_scores_BS, feature_indices_B)
        _check_finite("end score", "place", end_scores_BP, feature_indices_B)
        _check_finite("no-answer score", "place", null_B[:, None], feature_indices_B)
        num_ends = ends_BP.shape[1] // starts_BS.shape[1]
        starts_BP, start_scores_BP = (np.repeat(values, num_ends, axis=1) for values in (starts_BS, start_scores_BS))
        extent_BP = ends_BP - starts_BP
        legal_BP = (extent_BP >= 0) & (extent_BP < self.max_answer_length)
        legal_BP &= self.offsets.begins(starts_BP, feature_indices_B) >= 0
        legal_BP &= self.offsets.ends(ends_BP, feature_indices_B) >= 0
        score_BP = np.where(legal_BP, start_scores_BP + end_scores_BP, -np.inf)
        best_Bn = np.argsort(-score_BP, axis=1, kind="stable")[:, : self.n_best_size]
        none_B0 = np.zeros((len(null_B), 0), null_B.dtype)

        def keep(tokens_BP: Int64s, scores_BP: Floats) -> tuple[Tokens, Floats]:
            tokens_Bn = np.take_along_axis(np.where(legal_BP, tokens_BP, -1), best_Bn, axis=1)
            return tokens_Bn.astype(self._token_dtype), np.take_along_axis(scores_BP, best_Bn, axis=1)

        start, end = keep(starts_BP, start_scores_BP), keep(ends_BP, end_scores_BP)
        # The head has a single score of "no answer", which takes the place of the start logit.
        no_end_B = np.zeros_like(null_B)
        return Candidates(feature_indices_B, *start, null_B, none_B0, *end, no_end_B, none_B0, none_B0, none_B0)


def top_tokens(logits_RL: Floats, n: int, order: TokenOrder) -> Int64s:
    """Return the indices of the ``n`` largest logits of ``R`` rows, largest first, ``int64 [R, min(n, L)]``.

    The logits are finite. With ``"hf"`` the order of equal logits, and so which of them are kept, depends on the
    processor, as it does in the QA example of transformers.
    """
    sort = _SORTS[order]
    num_tokens = logits_RL.shape[1]
    if n >= num_tokens:
        return sort(logits_RL)
    # The indices of whole rows would take several times as long to sort as the n-th largest logit takes to find; numpy
    # sorts float32 in three quarters of the time of np.partition. Only rows whose result depends on the order of equal
    # logits are sorted whole.
    least_R1 = np.sort(logits_RL, axis=1)[:, num_tokens - n, None]
    kept_RL = logits_RL >= least_R1
    unclear_R = np.zeros(len(logits_RL), np.bool_)
    if np.count_nonzero(kept_RL) > n * len(logits_RL):
        unclear_R = np.count_nonzero(kept_RL, axis=1) > n
        kept_RL[unclear_R] = np.arange(num_tokens) < n  # any n tokens; replaced below
    flat_Rn = np.flatnonzero(kept_RL).reshape(-1, n)
    logits_Rn = logits_RL.reshape(-1).take(flat_Rn)
    order_Rn = _SORTS["deterministic"](logits_Rn)
    if order != "deterministic":
        sorted_Rn = _take(logits_Rn, order_Rn)
        unclear_R |= (sorted_Rn[:, 1:] == sorted_Rn[:, :-1]).any(axis=1)
    top_Rn = _take(flat_Rn, order_Rn) - num_tokens * np.arange(len(flat_Rn))[:, None]
    top_Rn[unclear_R] = sort(logits_RL[unclear_R])[:, :n]
    return top_Rn


def _take(values_RL: np.ndarray[Any, Any], places_Rn: Int64s) -> np.ndarray[Any, Any]:
    """Return the values at these places of each row: ``np.take_along_axis``, in half its time."""
    first_R1 = values_RL.shape[1] * np.arange(len(values_RL))[:, None]
    return values_RL.reshape(-1).take(first_R1 + places_Rn)


_SORTS: dict[TokenOrder, Callable[[Floats], Int64s]] = {
    "deterministic": lambda logits_RL: np.argsort(-logits_RL, axis=1, kind="stable"),
    "hf": lambda logits_RL: np.argsort(logits_RL, axis=1)[:, ::-1],
    "primeqa": lambda logits_RL: np.argsort(logits_RL.astype(np.float64), axis=1)[:, ::-1],
}


def _span_outputs(outputs: Sequence[Any]) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """Return the outputs of an extractive head, recognised by position and shape; absent outputs have no columns."""
    if len(outputs) < 2:
        raise InputError(
            f"The model returned {len(outputs)} arrays, but start logits and end logits are needed, in this order; "
            "use a model with a question answering head."
        )
    starts, ends, *others = (np.asarray(output) for output in outputs)
    if starts.shape != ends.shape or not np.issubdtype(ends.dtype, np.floating):
        raise InputError(
            f"Got start logits of shape {starts.shape} and end logits of shape {ends.shape} and dtype {ends.dtype}; "
            "expected two floating-point arrays of one shape, with a row for each feature. For the outputs of a "
            "beam-search head (XLNet, XLM) set mode='beam_search'."
        )
    none = np.zeros((len(starts), 0), starts.dtype)
    if not others or others[0].shape != (len(starts), len(TargetType)):
        return starts, ends, none, none, none, none
    if len(others) < 4 or others[1].shape != starts.shape:
        return starts, ends, others[0], none, none, none
    return starts, ends, others[0], others[1], others[2], others[3].reshape(-1, 1)


def _beam_outputs(outputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the five outputs of a beam-search head, the last as a vector."""
    arrays = [np.asarray(output) for output in outputs[:5]]
    shapes = [array.shape for array in arrays]
    is_beam = (
        len(arrays) == 5
        and [array.ndim for array in arrays[:4]] == [2, 2, 2, 2]
        and shapes[0] == shapes[1]
        and shapes[2] == shapes[3]
        and shapes[2][1] % shapes[0][1] == 0
        and len(set(map(len, arrays))) == 1
    )
    if not is_beam:
        raise InputError(
            f"The model returned arrays of shapes {shapes}, but the five outputs of a beam search are needed: "
            "start_top_log_probs, start_top_index, end_top_log_probs, end_top_index, cls_logits, with the same number "
            "of ends for each start. Use a model with a beam-search head, or another `mode` of post-processing."
        )
    return [*arrays[:4], arrays[4].reshape(-1)]


def _check_finite(name: str, column_name: str, values: Floats, feature_indices_B: Int64s) -> None:
    if not np.isfinite(values).all():
        row, place = np.argwhere(~np.isfinite(values))[0]
        raise InputError(
            f"The {name} of feature {feature_indices_B[row]} at {column_name} {place} is {values[row, place]}, but "
            "only finite values can be ranked. Check whether training diverged, or evaluate in float32."
        )
