"""The best few tokens of every row of logits.

Shape suffixes: R rows, L tokens of a row, n tokens kept.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from portico.mrc.arrays import Floats, Int64s

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
