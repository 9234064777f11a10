"""How the tokens are found that can begin and end the answers of a batch.

Shape suffixes: B features of the batch, L tokens of its longest row, F all features, n tokens kept.
"""

from abc import ABC, abstractmethod

import numpy as np

from portico.mrc.answers.top_tokens import Ties, top_tokens
from portico.mrc.arrays import Floats, Int64s

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
