"""Whether two runs differ by more than chance, on the same questions.

Shape suffixes: Q questions, K distinct sizes of a difference, R rounds.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from portico.mrc.report.figures.intervals import SEED

NUM_ROUNDS = 10_000


def mcnemar(num_fixed: int, num_broken: int) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    If the runs were equally good, each question that only one of them gets right would be a fair coin.

    Args:
        num_fixed: Questions that only the second run gets right.
        num_broken: Questions that only the first run gets right.

    Source: McNemar, Psychometrika 12, 1947, with the binomial distribution in place of its approximation.
    """
    num_coins, fewer = num_fixed + num_broken, min(num_fixed, num_broken)
    ways, term = 1, 1
    for heads in range(1, fewer + 1):
        term = term * (num_coins - heads + 1) // heads
        ways += term
    # Whole numbers up to here: the quotient is rounded once, whatever the number of questions.
    return min(1.0, 2 * ways / 2**num_coins)


def randomisation(differences_Q: npt.NDArray[np.floating[Any]], *, seed: int = SEED) -> float:
    """Return the two-sided p-value of an approximate randomisation test of a mean difference.

    In each of `NUM_ROUNDS` rounds every question's two scores are swapped or not, at random; counted is how often the
    mean then differs at least as much as it does in truth.

    Args:
        differences_Q: Second score minus first, ``[Q]``.
        seed: Seed of the swaps; the same seed gives the same p-value.

    Source: Noreen, "Computer-Intensive Methods for Testing Hypotheses", 1989.
    """
    # How many of the equal differences keep their sign is binomial, so questions are not swapped one by one.
    sizes_K, counts_K = np.unique(np.abs(differences_Q), return_counts=True)
    kept_RK = np.random.default_rng(seed).binomial(counts_K, 0.5, size=(NUM_ROUNDS, len(counts_K)))
    sums_R = np.abs((2 * kept_RK - counts_K) @ sizes_K)
    # Sums of the same numbers in another order may differ in the last digits.
    num_as_large = int((sums_R >= abs(float(np.sum(differences_Q))) - 1e-9).sum())
    return (num_as_large + 1) / (NUM_ROUNDS + 1)
