"""The best spans of every row, looked for among all of them.

Shape suffixes: B features of the batch, L tokens of its longest row, M lengths of an answer, n spans kept.
"""

import numpy as np

from portico.mrc.answers.offsets import TokenOffsets
from portico.mrc.answers.search import Search
from portico.mrc.answers.top_tokens import top_tokens
from portico.mrc.arrays import Floats, Int64s

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
