"""What is kept of the logits during evaluation: the tokens that can begin or end an answer.

Shape suffixes: F features (windows), B features of one batch, L tokens of the batch's longest row, n tokens kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from portico.errors import InputError
from portico.mrc.answers.top_tokens import Ties, top_tokens
from portico.mrc.arrays import Bools, Floats, Int64s, Tokens

_HF_PADDING = -100  # what transformers pads collected logits with


@dataclass(frozen=True, eq=False)
class TopTokens:
    """The best tokens of every feature, as starts or as ends.

    Attributes:
        token_Fn: Token indices, best first, -1 where a row has fewer than ``n``, ``int16`` or ``int32 [F, n]``.
        logit_Fn: Their logits in the dtype they came in, ``[F, n]``.
        null_F: Logit of token 0, which stands for "no answer", ``[F]``.
    """

    token_Fn: Tokens
    logit_Fn: Floats
    null_F: Floats

    def __getitem__(self, features: Int64s | Bools | slice) -> "TopTokens":
        return TopTokens(self.token_Fn[features], self.logit_Fn[features], self.null_F[features])

    @staticmethod
    def concatenate(parts: "Sequence[TopTokens]") -> "TopTokens":
        """Return the rows of all parts."""
        return TopTokens(
            np.concatenate([part.token_Fn for part in parts]),
            np.concatenate([part.logit_Fn for part in parts]),
            np.concatenate([part.null_F for part in parts]),
        )


@dataclass(frozen=True, eq=False)
class Candidates:
    """The starts and ends kept of some features; what processes exchange instead of logits.

    Attributes:
        feature_index_F: Which features, ``int64 [F]``.
        starts: Their best start tokens.
        ends: Their best end tokens.
    """

    feature_index_F: Int64s
    starts: TopTokens
    ends: TopTokens

    def __getitem__(self, features: Int64s | Bools | slice) -> "Candidates":
        return Candidates(self.feature_index_F[features], self.starts[features], self.ends[features])

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take, in bytes."""
        tops = (self.starts, self.ends)
        return self.feature_index_F.nbytes + sum(
            array.nbytes for top in tops for array in (top.token_Fn, top.logit_Fn, top.null_F)
        )


class SpanCollector:
    """Takes the logits of evaluation batches and keeps the best starts and ends of each feature.

    That is about 260 bytes a feature for 20 starts and ends in float32, however long its row.

    Args:
        num_features: Features of the whole evaluation set.
        longest: Tokens of the longest feature; what a batch holds beyond is padding and never part of an answer.
        n_best_size: How many starts and ends to keep, at least 1.
        ties: How equal logits are ordered.
    """

    def __init__(self, num_features: int, longest: int, *, n_best_size: int, ties: Ties) -> None:
        self._num_features = num_features
        self._longest = longest
        self._token_dtype = np.int16 if longest <= np.iinfo(np.int16).max else np.int32
        self._n_best_size = n_best_size
        self._ties: Ties = ties
        self._parts: list[Candidates] = []

    def update(self, start_logits_BL: Floats, end_logits_BL: Floats, feature_indices_B: Int64s) -> None:
        """Take one batch.

        Args:
            start_logits_BL: Score of each token as a start, ``float16``, ``float32`` or ``float64 [B, L]``.
            end_logits_BL: Score of each token as an end, of the same shape and dtype.
            feature_indices_B: Which feature each row is, ``int [B]``, in any order; of a feature that comes twice (a
                distributed sampler repeats some) the first counts.

        Raises:
            InputError: If a logit is not finite.
        """
        assert start_logits_BL.shape == end_logits_BL.shape, (start_logits_BL.shape, end_logits_BL.shape)
        indices_B = np.asarray(feature_indices_B, np.int64)
        assert indices_B.max(initial=-1) < self._num_features, (indices_B.max(), self._num_features)
        assert indices_B.shape == start_logits_BL.shape[:1], (indices_B.shape, start_logits_BL.shape)
        _check_finite("start", start_logits_BL, indices_B)
        _check_finite("end", end_logits_BL, indices_B)
        self._parts.append(Candidates(indices_B, self._top(start_logits_BL), self._top(end_logits_BL)))

    def merge(self, candidates: Candidates) -> None:
        """Take what the collector of another process kept."""
        self._parts.append(candidates)

    def candidates(self) -> Candidates:
        """Return what was kept, one row a feature, in ascending order of the features.

        Raises:
            InputError: If no logits came at all.
        """
        if not self._parts:
            raise InputError(
                f"None of the {self._num_features} features got logits; evaluate the model on all of them before "
                f"asking for answers."
            )
        together = Candidates(
            np.concatenate([part.feature_index_F for part in self._parts]),
            TopTokens.concatenate([part.starts for part in self._parts]),
            TopTokens.concatenate([part.ends for part in self._parts]),
        )
        first_F = np.unique(together.feature_index_F, return_index=True)[1]
        return together[first_F]

    def _top(self, logits_BL: Floats) -> TopTokens:
        null_B = logits_BL[:, 0]
        num_missing = self._longest - logits_BL.shape[1]
        if self._ties == "hf" and num_missing > 0:
            # transformers sorts rows after padding them to the longest batch, which can reorder equal logits.
            logits_BL = np.pad(logits_BL, ((0, 0), (0, num_missing)), constant_values=_HF_PADDING)
        top_Bn = top_tokens(logits_BL, self._n_best_size, self._ties)
        shape = (len(top_Bn), self._n_best_size)
        token_Bn, logit_Bn = np.full(shape, -1, self._token_dtype), np.zeros(shape, logits_BL.dtype)
        kept = slice(top_Bn.shape[1])
        token_Bn[:, kept] = np.where(top_Bn < self._longest, top_Bn, -1)
        logit_Bn[:, kept] = np.take_along_axis(logits_BL, top_Bn, axis=1)
        return TopTokens(token_Bn, logit_Bn, null_B.copy())


def _check_finite(name: str, logits_BL: Floats, feature_indices_B: Int64s) -> None:
    if np.isfinite(logits_BL).all():
        return
    row, token = np.argwhere(~np.isfinite(logits_BL))[0]
    raise InputError(
        f"The {name} logit of feature {feature_indices_B[row]} at token {token} is {logits_BL[row, token]}; answers "
        f"can only be ranked by finite logits. See whether training diverged, or evaluate in a wider dtype (float32)."
    )
