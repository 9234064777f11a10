"""What is kept of the outputs of every feature: the tokens that can begin or end an answer.

Shape suffixes: F features (windows), n tokens kept, K answer types.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Bools, Floats, Int64s, Tokens
from portico.mrc.postprocess.token_offsets import TokenOffsets
from portico.mrc.target_type import TargetType


@dataclass(frozen=True, eq=False)
class TopTokens:
    """The best tokens of every feature, as starts or as ends.

    Attributes:
        token_Fn: Token indices, best first, -1 where a row has fewer than ``n``, ``int16`` or ``int32 [F, n]``.
        logit_Fn: Their logits in the dtype they came in, ``[F, n]``.
        null_F: Logit of token 0, which stands for "no answer", ``[F]``.
        deviation_Fn: Standard deviations of the logits, ``[F, n]``, or ``[F, 0]`` where the model gives none.
    """

    token_Fn: Tokens
    logit_Fn: Floats
    null_F: Floats
    deviation_Fn: Floats

    def __getitem__(self, features: Int64s | Bools | slice) -> "TopTokens":
        return TopTokens(*(getattr(self, field.name)[features] for field in fields(self)))

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take, in bytes."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    @staticmethod
    def concatenate(parts: "Sequence[TopTokens]") -> "TopTokens":
        """Return the rows of all parts."""
        names = [field.name for field in fields(TopTokens)]
        return TopTokens(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class Candidates:
    """What is kept of some features, and what processes exchange instead of logits.

    Attributes:
        feature_index_F: Which features, ``int64 [F]``.
        starts: Their best start tokens.
        ends: Their best end tokens.
        type_logits_FK: Scores of the answer types (:class:`~portico.mrc.target_type.TargetType`), ``[F, K]``; ``K``
            is 0 where the model gives none.
        similarity_F1: Similarity of question and passage, ``[F, 1]``, or ``[F, 0]`` where the model gives none.
        paired: Whether start ``i`` belongs to end ``i`` alone; otherwise every start may go with every end.
    """

    feature_index_F: Int64s
    starts: TopTokens
    ends: TopTokens
    type_logits_FK: Floats
    similarity_F1: Floats
    paired: bool

    def __getitem__(self, features: Int64s | Bools | slice) -> "Candidates":
        return Candidates(
            self.feature_index_F[features],
            self.starts[features],
            self.ends[features],
            self.type_logits_FK[features],
            self.similarity_F1[features],
            self.paired,
        )

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take, in bytes."""
        return (
            self.feature_index_F.nbytes
            + self.starts.nbytes
            + self.ends.nbytes
            + self.type_logits_FK.nbytes
            + self.similarity_F1.nbytes
        )

    @staticmethod
    def concatenate(parts: "Sequence[Candidates]") -> "Candidates":
        """Return the rows of all parts, at least one, which must have been searched in the same way."""
        return Candidates(
            np.concatenate([part.feature_index_F for part in parts]),
            TopTokens.concatenate([part.starts for part in parts]),
            TopTokens.concatenate([part.ends for part in parts]),
            np.concatenate([part.type_logits_FK for part in parts]),
            np.concatenate([part.similarity_F1 for part in parts]),
            parts[0].paired,
        )


@dataclass(frozen=True, eq=False)
class ReaderOutputs:
    """What a model with an extractive head says about a batch.

    Attributes:
        start_logits_BL: Score of each token as a start, ``float16``, ``float32`` or ``float64 [B, L]``.
        end_logits_BL: Score of each token as an end, of the same shape and dtype.
        type_logits_BK: Score of each answer type, ``[B, K]``; ``K`` is 0 where the model gives none.
        start_deviations_BL: Standard deviation of each start logit, ``[B, L]``, or ``[B, 0]``.
        end_deviations_BL: Standard deviation of each end logit, ``[B, L]``, or ``[B, 0]``.
        similarity_B1: Similarity of question and passage, ``[B, 1]``, or ``[B, 0]``.
    """

    start_logits_BL: Floats
    end_logits_BL: Floats
    type_logits_BK: Floats
    start_deviations_BL: Floats
    end_deviations_BL: Floats
    similarity_B1: Floats

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> "ReaderOutputs":
        """Take the outputs of a model in the order in which it gives them.

        Args:
            arrays: Start and end logits, then perhaps the logits of the answer types, then perhaps start deviations,
                end deviations and similarities. Of other outputs (hidden states) nothing is kept.

        Raises:
            InputError: If start and end logits are missing or differ in shape, or come from a beam-search head.
        """
        start_logits, end_logits, *others = (np.asarray(array) for array in _at_least_two(arrays))
        _check_shapes(start_logits, end_logits)
        none = np.zeros((len(start_logits), 0), start_logits.dtype)
        has_types = bool(others) and others[0].shape == (len(start_logits), len(TargetType))
        if not has_types:
            return cls(start_logits, end_logits, none, none, none, none)
        if len(others) < 4 or others[1].shape != start_logits.shape:
            return cls(start_logits, end_logits, others[0], none, none, none)
        types, start_deviations, end_deviations, similarity = others[:4]
        return cls(start_logits, end_logits, types, start_deviations, end_deviations, similarity.reshape(-1, 1))

    def check_finite(self, feature_indices_B: Int64s) -> None:
        """Refuse scores that cannot be ranked.

        Raises:
            InputError: Names the first feature and token whose logit is not finite.
        """
        for name, logits in (("start", self.start_logits_BL), ("end", self.end_logits_BL)):
            _check_finite(f"{name} logit", "token", logits, feature_indices_B)
        _check_finite("answer type's logit", "type", self.type_logits_BK, feature_indices_B)


def _at_least_two(arrays: Sequence[Any]) -> Sequence[Any]:
    if len(arrays) < 2:
        raise InputError(
            f"The model gave {len(arrays)} arrays, but answers need its start logits and its end logits, in this "
            "order; use a model with a question answering head."
        )
    return arrays


def _check_shapes(start_logits: Floats, end_logits: Floats) -> None:
    if start_logits.shape != end_logits.shape or not np.issubdtype(end_logits.dtype, np.floating):
        raise InputError(
            f"Start logits of shape {start_logits.shape} came with end logits of shape {end_logits.shape} and dtype "
            f"{end_logits.dtype}; both must be floating-point arrays of one shape, a row a feature. The outputs of a "
            "beam-search head (XLNet, XLM) are taken by mode='beam_search'."
        )


def _check_finite(name: str, column: str, logits: Floats, feature_indices_B: Int64s) -> None:
    if np.isfinite(logits).all():
        return
    row, place = np.argwhere(~np.isfinite(logits))[0]
    raise InputError(
        f"The {name} of feature {feature_indices_B[row]} at {column} {place} is {logits[row, place]}; answers can "
        "only be ranked by finite logits. See whether training diverged, or evaluate in a wider dtype (float32)."
    )


Ties: TypeAlias = Literal["deterministic", "hf"]
"""How equal scores are ordered: the lower index first, or as numpy's unstable sort happens to leave them."""

TokenOrder: TypeAlias = Ties | Literal["primeqa"]
"""The same, or as numpy's unstable sort leaves Python's floats."""


def top_tokens(logits_RL: Floats, n: int, ties: TokenOrder) -> Int64s:
    """Return the indices of the `n` largest logits of every row, largest first, ``int64 [R, min(n, L)]``.

    Args:
        logits_RL: Finite scores, ``float [R, L]``.
        n: How many, at least 1.
        ties: ``"hf"`` sorts just as the QA example of transformers does; there the order of equal logits, and so
            which of them are kept, depends on the processor. ``"primeqa"`` sorts as PrimeQA does.
    """
    sort = _SORTS[ties]
    num_tokens = logits_RL.shape[1]
    if n >= num_tokens:
        return sort(logits_RL)
    # Sorting whole rows would cost several times as much as finding the n-th largest logit first. Only rows whose
    # answer depends on the order of equal logits are sorted whole.
    least_R1 = np.partition(logits_RL, num_tokens - n, axis=1)[:, num_tokens - n, None]
    kept_RL = logits_RL >= least_R1
    unclear_R = np.count_nonzero(kept_RL, axis=1) > n
    kept_RL[unclear_R] = np.arange(num_tokens) < n  # any n tokens; replaced below
    ascending_Rn = np.flatnonzero(kept_RL).reshape(-1, n) % num_tokens
    logits_Rn = np.take_along_axis(logits_RL, ascending_Rn, axis=1)
    order_Rn = _stable_order(logits_Rn)
    if ties != "deterministic":
        unclear_R |= (np.diff(np.take_along_axis(logits_Rn, order_Rn, axis=1), axis=1) == 0).any(axis=1)
    top_Rn = np.take_along_axis(ascending_Rn, order_Rn, axis=1)
    top_Rn[unclear_R] = sort(logits_RL[unclear_R])[:, :n]
    return top_Rn


def _stable_order(logits_RL: Floats) -> Int64s:
    return np.argsort(-logits_RL, axis=1, kind="stable")


def _hf_order(logits_RL: Floats) -> Int64s:
    return np.argsort(logits_RL, axis=1)[:, ::-1]


def _primeqa_order(logits_RL: Floats) -> Int64s:
    return _hf_order(logits_RL.astype(np.float64))


_SORTS: dict[TokenOrder, Callable[[Floats], Int64s]] = {
    "deterministic": _stable_order,
    "hf": _hf_order,
    "primeqa": _primeqa_order,
}


_HF_PADDING = -100  # what transformers pads collected logits with


class Search(ABC):
    """Finds the best start and end tokens of the rows of a batch."""

    paired = False
    """Whether start ``i`` belongs to end ``i`` alone."""

    @abstractmethod
    def find(self, start_logits_BL: Floats, end_logits_BL: Floats, feature_indices_B: Int64s) -> tuple[Int64s, Int64s]:
        """Return start and end tokens of each row, best first, -1 for none, ``int64 [B, n]`` each."""


class TopTokenSearch(Search):
    """The best starts and, on their own, the best ends of each row, as the QA example of transformers takes them.

    Args:
        n_best_size: How many starts and ends to keep, at least 1.
        longest: Tokens of the longest feature; what a batch holds beyond is padding and never part of an answer.
        ties: How equal logits are ordered.
    """

    def __init__(self, n_best_size: int, longest: int, ties: Ties) -> None:
        self._n_best_size, self._longest = n_best_size, longest
        self._ties: Ties = ties

    def find(self, start_logits_BL: Floats, end_logits_BL: Floats, feature_indices_B: Int64s) -> tuple[Int64s, Int64s]:
        """Return the tokens; padding may take places in the list, as it does in transformers."""
        return self._top(start_logits_BL), self._top(end_logits_BL)

    def _top(self, logits_BL: Floats) -> Int64s:
        num_missing = self._longest - logits_BL.shape[1]
        if self._ties == "hf" and num_missing > 0:
            # transformers sorts rows after padding them to the longest batch, which can reorder equal logits.
            logits_BL = np.pad(logits_BL, ((0, 0), (0, num_missing)), constant_values=_HF_PADDING)
        top_Bn = top_tokens(logits_BL, self._n_best_size, self._ties)
        return np.where(top_Bn < self._longest, top_Bn, -1)


class UnpaddedSearch(Search):
    """The best starts and ends of each row without its padding, as PrimeQA takes them.

    Args:
        n_best_size: How many starts and ends to keep, at least 1.
        lengths_F: Tokens of each feature, ``int64 [F]``.
    """

    def __init__(self, n_best_size: int, lengths_F: Int64s) -> None:
        self._n_best_size, self._lengths_F = n_best_size, lengths_F

    def find(self, start_logits_BL: Floats, end_logits_BL: Floats, feature_indices_B: Int64s) -> tuple[Int64s, Int64s]:
        """Return the tokens; equal logits in the order that numpy's unstable sort of Python floats gives them."""
        lengths_B = np.minimum(self._lengths_F[feature_indices_B], start_logits_BL.shape[1])
        starts_Bn, ends_Bn = np.full((2, len(lengths_B), self._n_best_size), -1)
        for length in np.unique(lengths_B):
            rows = np.flatnonzero(lengths_B == length)
            for tokens_Bn, logits_BL in ((starts_Bn, start_logits_BL), (ends_Bn, end_logits_BL)):
                top = top_tokens(logits_BL[rows, :length], self._n_best_size, "primeqa")
                tokens_Bn[rows, : top.shape[1]] = top
        return starts_Bn, ends_Bn


_ROWS_PER_BLOCK = 64  # bounds the memory for all spans


class ExhaustiveSearch(Search):
    """The best legal spans of each row, whatever rank their start and end have among the tokens.

    Where few starts and ends are kept, the best span may join two tokens that are not among them; this search finds
    it, at several times the cost.

    Args:
        n_best_size: Spans to keep of each feature, at least 1.
        max_answer_length: Longest answer, in tokens.
        offsets: Which tokens may begin and end an answer.
    """

    paired = True

    def __init__(self, n_best_size: int, max_answer_length: int, offsets: TokenOffsets) -> None:
        self._n_best_size, self._max_answer_length, self._offsets = n_best_size, max_answer_length, offsets

    def find(self, start_logits_BL: Floats, end_logits_BL: Floats, feature_indices_B: Int64s) -> tuple[Int64s, Int64s]:
        """Return the ends of the best spans; of equal scores the lower start, then the lower end comes first."""
        found = [
            self._find(start_logits_BL[rows], end_logits_BL[rows], feature_indices_B[rows])
            for rows in np.array_split(np.arange(len(start_logits_BL)), -(-len(start_logits_BL) // _ROWS_PER_BLOCK))
        ]
        return np.concatenate([starts for starts, _ in found]), np.concatenate([ends for _, ends in found])

    def _find(
        self, start_logits_BL: Floats, end_logits_BL: Floats, feature_indices_B: Int64s
    ) -> tuple[Int64s, Int64s]:
        num_rows, num_tokens = start_logits_BL.shape
        chars_BL2 = self._offsets.chars(np.tile(np.arange(num_tokens), (num_rows, 1)), feature_indices_B)
        start_BL = np.where(chars_BL2[..., 0] >= 0, start_logits_BL, -np.inf)
        end_BL = np.where(chars_BL2[..., 1] >= 0, end_logits_BL, -np.inf)
        num_lengths = min(self._max_answer_length, num_tokens)
        padded_BL = np.pad(end_BL, ((0, 0), (0, num_lengths - 1)), constant_values=-np.inf)
        ends_BLM = np.lib.stride_tricks.sliding_window_view(padded_BL, num_lengths, axis=1)
        scores_BS = (start_BL[:, :, None] + ends_BLM).reshape(num_rows, -1)
        best_Bn = top_tokens(scores_BS, self._n_best_size, "deterministic")
        legal_Bn = np.take_along_axis(scores_BS, best_Bn, axis=1) > -np.inf
        start_Bn, extent_Bn = np.divmod(best_Bn, num_lengths)
        return np.where(legal_Bn, start_Bn, -1), np.where(legal_Bn, start_Bn + extent_Bn, -1)


class BestTokens:
    """Keeps the tokens that a search finds with all that the model says about them.

    Args:
        search: Finds them.
        n_best_size: How many starts and ends to keep, at least 1.
        longest: Tokens of the longest feature.
    """

    def __init__(self, search: Search, n_best_size: int, longest: int) -> None:
        self._search = search
        self._n_best_size = n_best_size
        self._token_dtype = np.int16 if longest <= np.iinfo(np.int16).max else np.int32

    def __call__(self, outputs: Sequence[Any], feature_indices_B: Int64s) -> Candidates:
        """Return the candidates of a batch.

        Args:
            outputs: See `ReaderOutputs.of`.
            feature_indices_B: Which feature each row is, ``int64 [B]``.

        Raises:
            InputError: If a logit is not finite.
        """
        batch = ReaderOutputs.of(outputs)
        batch.check_finite(feature_indices_B)
        starts_Bn, ends_Bn = self._search.find(batch.start_logits_BL, batch.end_logits_BL, feature_indices_B)
        return Candidates(
            feature_indices_B,
            self._kept(starts_Bn, batch.start_logits_BL, batch.start_deviations_BL),
            self._kept(ends_Bn, batch.end_logits_BL, batch.end_deviations_BL),
            batch.type_logits_BK,
            batch.similarity_B1,
            self._search.paired,
        )

    def _kept(self, top_Bn: Int64s, logits_BL: Floats, deviations_BL: Floats) -> TopTokens:
        shape = (len(top_Bn), self._n_best_size)
        token_Bn, logit_Bn = np.full(shape, -1, self._token_dtype), np.zeros(shape, logits_BL.dtype)
        # A search may name tokens beyond the batch, which are padding.
        kept, in_row_Bn = slice(top_Bn.shape[1]), np.minimum(top_Bn, logits_BL.shape[1] - 1)
        token_Bn[:, kept] = top_Bn
        logit_Bn[:, kept] = np.take_along_axis(logits_BL, in_row_Bn, axis=1)
        if deviations_BL.shape[1] == 0:
            return TopTokens(token_Bn, logit_Bn, logits_BL[:, 0].copy(), deviations_BL)
        deviation_Bn = np.zeros(shape, deviations_BL.dtype)
        deviation_Bn[:, kept] = np.take_along_axis(deviations_BL, in_row_Bn, axis=1)
        return TopTokens(token_Bn, logit_Bn, logits_BL[:, 0].copy(), deviation_Bn)


_OUTPUTS = "start_top_log_probs, start_top_index, end_top_log_probs, end_top_index, cls_logits"


class BestPairs:
    """Keeps the best legal pairs of start and end that the beam of each feature holds.

    Args:
        offsets: Which tokens may begin and end an answer.
        n_best_size: Pairs to keep, at least 1.
        max_answer_length: Longest answer, in tokens.
    """

    def __init__(self, offsets: TokenOffsets, n_best_size: int, max_answer_length: int) -> None:
        self._offsets, self._n_best_size, self._max_answer_length = offsets, n_best_size, max_answer_length
        longest = int(offsets.lengths_F.max())
        self._token_dtype = np.int16 if longest <= np.iinfo(np.int16).max else np.int32

    def __call__(self, outputs: Sequence[Any], feature_indices_B: Int64s) -> Candidates:
        """Return the candidates of a batch.

        Args:
            outputs: Log-probabilities of the best starts, ``float [B, S]``, and their tokens, ``int [B, S]``; those
                of the best ends of each start, one start after the other, ``[B, P]``; scores of "no answer",
                ``float [B]``.
            feature_indices_B: Which feature each row is, ``int64 [B]``.

        Raises:
            InputError: If these are not the outputs of a beam, or one is not finite.
        """
        start_scores_BS, starts_BS, end_scores_BP, ends_BP, null_B = _beam(outputs)
        _check_finite_best_pairs(start_scores_BS, end_scores_BP, null_B, feature_indices_B)
        num_ends = ends_BP.shape[1] // starts_BS.shape[1]
        starts_BP, start_scores_BP = (np.repeat(array, num_ends, axis=1) for array in (starts_BS, start_scores_BS))
        begin_BP = self._offsets.chars(starts_BP, feature_indices_B)[..., 0]
        end_BP = self._offsets.chars(ends_BP, feature_indices_B)[..., 1]
        extent_BP = ends_BP - starts_BP
        legal_BP = (begin_BP >= 0) & (end_BP >= 0) & (extent_BP >= 0) & (extent_BP < self._max_answer_length)
        score_BP = np.where(legal_BP, start_scores_BP + end_scores_BP, -np.inf)
        best_Bn = np.argsort(-score_BP, axis=1, kind="stable")[:, : self._n_best_size]
        is_legal_Bn = np.take_along_axis(legal_BP, best_Bn, axis=1)
        none_B0 = np.zeros((len(null_B), 0), null_B.dtype)

        def kept(tokens_BP: Int64s, scores_BP: Any, null_B: Any) -> TopTokens:
            tokens_Bn = np.where(is_legal_Bn, np.take_along_axis(tokens_BP, best_Bn, axis=1), -1)
            return TopTokens(
                tokens_Bn.astype(self._token_dtype), np.take_along_axis(scores_BP, best_Bn, axis=1), null_B, none_B0
            )

        return Candidates(
            feature_indices_B,
            kept(starts_BP, start_scores_BP, null_B),
            kept(ends_BP, end_scores_BP, np.zeros_like(null_B)),
            none_B0,
            none_B0,
            paired=True,
        )


def _beam(outputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
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
            f"The model gave arrays of the shapes {shapes}, but a beam is five: {_OUTPUTS}, the ends as many as a "
            "whole number for each start; use a model with a beam-search head, or another mode of post-processing."
        )
    return [*arrays[:4], arrays[4].reshape(-1)]


def _check_finite_best_pairs(start_scores_BS: Any, end_scores_BP: Any, null_B: Any, feature_indices_B: Int64s) -> None:
    for name, scores in (("start", start_scores_BS), ("end", end_scores_BP), ("no-answer", null_B[:, None])):
        if not np.isfinite(scores).all():
            row, place = np.argwhere(~np.isfinite(scores))[0]
            raise InputError(
                f"The {name} score {place} of feature {feature_indices_B[row]} is {scores[row, place]}; answers can "
                "only be ranked by finite scores. See whether training diverged, or evaluate in float32."
            )
