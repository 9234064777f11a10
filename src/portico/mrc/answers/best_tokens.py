"""What to keep of the logits of a batch.

Shape suffixes: B features of one batch, L tokens of the batch's longest row, n tokens kept.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from portico.mrc.answers.candidates import Candidates, TopTokens
from portico.mrc.answers.reader_outputs import ReaderOutputs
from portico.mrc.answers.search import Search
from portico.mrc.arrays import Floats, Int64s


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
