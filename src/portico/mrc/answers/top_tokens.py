"""The best few tokens of every row of logits.

Shape suffixes: R rows, L tokens of a row, n tokens kept.
"""

from typing import Literal, TypeAlias

import numpy as np

from portico.mrc.arrays import Floats, Int64s

Ties: TypeAlias = Literal["deterministic", "hf"]
"""How equal scores are ordered: the lower index first, or as numpy's unstable sort happens to leave them."""


def top_tokens(logits_RL: Floats, n: int, ties: Ties) -> Int64s:
    """Return the indices of the `n` largest logits of every row, largest first, ``int64 [R, min(n, L)]``.

    Args:
        logits_RL: Finite scores, ``float [R, L]``.
        n: How many, at least 1.
        ties: ``"hf"`` sorts just as the QA example of transformers does; there the order of equal logits, and so
            which of them are kept, depends on the processor.
    """
    if ties == "hf":
        return np.argsort(logits_RL, axis=1)[:, : -n - 1 : -1]
    num_tokens = logits_RL.shape[1]
    if n >= num_tokens:
        return _stable_order(logits_RL)
    # Sorting whole rows would cost several times as much as finding the n-th largest logit first. Only rows where
    # other tokens share that logit need the sort, to keep those with the lower index.
    least_R1 = np.partition(logits_RL, num_tokens - n, axis=1)[:, num_tokens - n, None]
    kept_RL = logits_RL >= least_R1
    tied_R = kept_RL.sum(axis=1) > n
    top_Rn = np.empty((len(logits_RL), n), np.int64)
    top_Rn[tied_R] = _stable_order(logits_RL[tied_R])[:, :n]
    clear_rows = np.flatnonzero(~tied_R)
    ascending_Rn = np.nonzero(kept_RL[clear_rows])[1].reshape(-1, n)
    order_Rn = _stable_order(np.take_along_axis(logits_RL[clear_rows], ascending_Rn, axis=1))
    top_Rn[clear_rows] = np.take_along_axis(ascending_Rn, order_Rn, axis=1)
    return top_Rn


def _stable_order(logits_RL: Floats) -> Int64s:
    return np.argsort(-logits_RL, axis=1, kind="stable")
