"""Which windows without an answer are trained on."""

from enum import IntEnum

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Bools, Int64s
from portico.mrc.target_type import TargetType


class SubsampleType(IntEnum):
    """The kinds of windows that are kept with different probabilities."""

    POSITIVE = 0
    NEGATIVE_HAS_ANSWER = 1
    NEGATIVE_NO_ANSWER = 2


class Subsampling:
    """Keeps windows with an answer, and others with a probability.

    Args:
        when_has_answer: Probability of keeping a window without an answer to a question that has one elsewhere.
        when_no_answer: Probability of keeping a window of a question without an answer.
        seed: Seed of the choice, which does not touch any other random numbers.

    Raises:
        InputError: If a probability is outside 0..1.
    """

    def __init__(self, when_has_answer: float, when_no_answer: float, seed: int) -> None:
        for name, value in (("has", when_has_answer), ("no", when_no_answer)):
            if not 0 <= value <= 1:
                raise InputError(
                    f"`negative_sampling_prob_when_{name}_answer={value}` is no probability; use a number from 0 to 1."
                )
        self.probabilities = np.array([1.0, when_has_answer, when_no_answer])
        self._seed = seed

    @property
    def keeps_all(self) -> bool:
        """Whether every window is kept."""
        return bool((self.probabilities == 1).all())

    @property
    def keeps_positives_only(self) -> bool:
        """Whether no window without an answer is kept."""
        return bool((self.probabilities[1:] == 0).all())

    def keep(self, subsample_type_F: Int64s) -> Bools:
        """Tell which windows are kept, ``bool [F]``; the same for the same seed.

        Args:
            subsample_type_F: The `SubsampleType` of each window, ``int64 [F]``.
        """
        drawn_F = np.random.default_rng(self._seed).random(len(subsample_type_F))
        kept_F: Bools = drawn_F < self.probabilities[subsample_type_F]
        return kept_F


def subsample_types(target_type_F: Int64s, has_answer_F: Bools) -> Int64s:
    """Return the `SubsampleType` of each window, ``int64 [F]``.

    Args:
        target_type_F: The `TargetType` of each window, ``int64 [F]``.
        has_answer_F: Whether its question has an answer, in this window or another, ``bool [F]``.
    """
    negative_F = np.where(has_answer_F, SubsampleType.NEGATIVE_HAS_ANSWER, SubsampleType.NEGATIVE_NO_ANSWER)
    return np.where(target_type_F == TargetType.NO_ANSWER, negative_F, SubsampleType.POSITIVE).astype(np.int64)
