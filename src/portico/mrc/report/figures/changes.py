"""What became better and what worse from one run to another.

Shape suffixes: Q questions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from portico.mrc.report.figures.intervals import Interval, mean_intervals
from portico.mrc.report.figures.significance import mcnemar, randomisation
from portico.mrc.report.results import QuestionResult


class Change(Enum):
    """The one class each question falls in: its name on the page, and what it means."""

    FIXED = ("fixed", "exactly right only in the second run")
    BROKEN = ("broken", "exactly right only in the first run")
    BETTER = ("better", "not exact in either, but F1 rose")
    WORSE = ("worse", "not exact in either, but F1 fell")
    OTHER_ANSWER = ("other answer", "another text with the same scores")
    UNCHANGED = ("unchanged", "the same answer")

    def __init__(self, label: str, meaning: str) -> None:
        self.label = label
        self.meaning = meaning

    @property
    def css_class(self) -> str:
        """The name under which the style sheets colour this change."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class Difference:
    """The scores of the same questions in two runs.

    Args:
        name: What the questions share.
        count: How many they are, at least 1.
        first_exact: Mean exact match of the first run, 0..100.
        second_exact: That of the second run.
        first_f1: Mean F1 of the first run, 0..100.
        second_f1: That of the second run.
        exact_interval: Paired bootstrap interval of the second exact match minus the first.
        f1_interval: The same of F1.
        num_fixed: Questions that only the second run gets exactly right.
        num_broken: Questions that only the first run gets exactly right.
    """

    name: str
    count: int
    first_exact: float
    second_exact: float
    first_f1: float
    second_f1: float
    exact_interval: Interval
    f1_interval: Interval
    num_fixed: int
    num_broken: int


class Significance(NamedTuple):
    """How likely differences as large would be if the runs were equally good.

    Args:
        exact: p-value of exact match, by McNemar's exact test.
        f1: p-value of F1, by approximate randomisation.
    """

    exact: float
    f1: float


def change(first: QuestionResult, second: QuestionResult) -> Change:
    """Return what became of a question that two runs answered."""
    if bool(first.exact) != bool(second.exact):
        return Change.FIXED if second.exact else Change.BROKEN
    if first.f1 != second.f1:
        return Change.BETTER if second.f1 > first.f1 else Change.WORSE
    return Change.UNCHANGED if first.predicted_text == second.predicted_text else Change.OTHER_ANSWER


def change_counts(first: Sequence[QuestionResult], second: Sequence[QuestionResult]) -> dict[Change, int]:
    """Return how often each change occurred, in the order of `Change`, without those that never did."""
    counts = Counter(map(change, first, second))
    return {kind: counts[kind] for kind in Change if counts[kind]}


def difference(name: str, first: Sequence[QuestionResult], second: Sequence[QuestionResult]) -> Difference:
    """Compare at least one question of two runs; both sequences hold the same questions in the same order."""
    first_Q2, second_Q2 = (
        np.array([(100 * result.exact, 100 * result.f1) for result in results]) for results in (first, second)
    )
    (first_exact, first_f1), (second_exact, second_f1) = first_Q2.mean(axis=0), second_Q2.mean(axis=0)
    exact_interval, f1_interval = mean_intervals(second_Q2 - first_Q2)
    exact_gains_Q = second_Q2[:, 0] - first_Q2[:, 0]
    return Difference(
        name=name,
        count=len(first),
        first_exact=float(first_exact),
        second_exact=float(second_exact),
        first_f1=float(first_f1),
        second_f1=float(second_f1),
        exact_interval=exact_interval,
        f1_interval=f1_interval,
        num_fixed=int((exact_gains_Q > 0).sum()),
        num_broken=int((exact_gains_Q < 0).sum()),
    )


def significance(first: Sequence[QuestionResult], second: Sequence[QuestionResult]) -> Significance:
    """Test the difference of two runs on at least one question, given as in :func:`difference`."""
    gains_Q = np.array([after.f1 - before.f1 for before, after in zip(first, second, strict=True)])
    whole = difference("", first, second)
    return Significance(mcnemar(whole.num_fixed, whole.num_broken), randomisation(gains_Q))
