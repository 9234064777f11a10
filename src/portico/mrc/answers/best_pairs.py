"""What to keep of the beams of a batch.

Shape suffixes: B features of a batch, S starts kept by the model, P pairs of a start and an end, n pairs kept.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from portico.errors import InputError
from portico.mrc.answers.candidates import Candidates, TopTokens
from portico.mrc.answers.offsets import TokenOffsets
from portico.mrc.arrays import Int64s

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
        _check_finite(start_scores_BS, end_scores_BP, null_B, feature_indices_B)
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


def _check_finite(start_scores_BS: Any, end_scores_BP: Any, null_B: Any, feature_indices_B: Int64s) -> None:
    for name, scores in (("start", start_scores_BS), ("end", end_scores_BP), ("no-answer", null_B[:, None])):
        if not np.isfinite(scores).all():
            row, place = np.argwhere(~np.isfinite(scores))[0]
            raise InputError(
                f"The {name} score {place} of feature {feature_indices_B[row]} is {scores[row, place]}; answers can "
                "only be ranked by finite scores. See whether training diverged, or evaluate in float32."
            )
