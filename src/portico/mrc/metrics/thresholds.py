"""Metrics that keep numbers for each question, and the scores at every confidence threshold.

Shape suffixes: E questions, T thresholds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

Doubles = npt.NDArray[np.float64]


class QuestionRows(Metric):
    """A metric that keeps rows of numbers; processes concatenate theirs in rank order."""

    full_state_update = False
    higher_is_better = True

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self._empty_rows: dict[str, torch.Tensor] = {}

    def add_rows(self, name: str, *shape: int, dtype: torch.dtype = torch.float64) -> None:
        """Declare a state of rows, each of this shape."""
        self.add_state(name, [], dist_reduce_fx="cat")
        self._empty_rows[name] = torch.empty(0, *shape, dtype=dtype)

    def append_rows(self, name: str, rows: torch.Tensor | npt.NDArray[Any] | Sequence[Any]) -> None:
        """Append rows, ``[N, *shape]``, to a state."""
        empty = self._empty_rows[name]
        tensor = torch.as_tensor(rows, dtype=empty.dtype, device=self.device)
        getattr(self, name).append(tensor.reshape(-1, *empty.shape[1:]))

    def rows(self, name: str) -> torch.Tensor:
        """Return all rows of a state, ``[N, *shape]``, on the CPU."""
        parts = getattr(self, name)
        return dim_zero_cat(parts).cpu() if len(parts) else self._empty_rows[name]

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Concatenate the rows of all processes, including processes that have none."""
        # torchmetrics stands in a float32 vector for an empty list state, which cannot be gathered with other shapes.
        for name, empty in self._empty_rows.items():
            if isinstance(getattr(self, name), list) and not getattr(self, name):
                getattr(self, name).append(empty.to(self.device))
        super().sync(*args, **kwargs)


class Quality(NamedTuple):
    """Scores in 0..1 of answering only questions whose confidence is at least ``threshold``.

    Precision is the sum of the answers' scores divided by the number of predicted answers; recall divides by the
    number of gold answers.
    """

    f1: float
    precision: float
    recall: float
    threshold: float


class PrefixSweep:
    """Precision and recall of answering only the most confident questions, at every distinct confidence.

    Args:
        outcomes_E4: A row per question: whether there is a gold answer, whether an answer was predicted, the score of
            the prediction in 0..1, and the model's confidence.
    """

    def __init__(self, outcomes_E4: Doubles) -> None:
        descending_E4 = outcomes_E4[np.argsort(-outcomes_E4[:, 3], kind="stable")]
        has_gold_E, has_prediction_E, worth_E, score_E = descending_E4.T
        # No threshold separates equal scores: the row of the last question with a score counts for all of them.
        last_T = np.flatnonzero(np.append(score_E[1:] != score_E[:-1], True)) if len(score_E) else np.empty(0, int)
        worth_T = compute_running_sums(worth_E)[last_T]
        self.threshold_T = score_E[last_T]
        self.precision_T = _safe_divide(worth_T, compute_running_sums(has_prediction_E)[last_T])
        self.recall_T = _safe_divide(worth_T, has_gold_E.sum())
        self.f1_T = _safe_divide(2 * self.precision_T * self.recall_T, self.precision_T + self.recall_T)

    def best(self) -> Quality:
        """Return the scores at the threshold with the best F1, the highest of several; zeros if no F1 is positive."""
        return self.score_all(int(self.f1_T.argmax()) if len(self.f1_T) else -1)

    def score_all(self, t: int = -1) -> Quality:
        """Return the scores of all answers, or of the answers above threshold ``t``; zeros if no F1 is positive."""
        if not self.f1_T.any():
            return Quality(0.0, 0.0, 0.0, 0.0)
        return Quality(*map(float, (self.f1_T[t], self.precision_T[t], self.recall_T[t], self.threshold_T[t])))

    def recall_at_precision(self, target: float) -> tuple[float, float]:
        """Return the best recall at which the precision reaches ``target``, and that precision; zeros if none does."""
        recall_T = np.where(self.precision_T >= target, self.recall_T, 0.0)
        if not recall_T.any():
            return 0.0, 0.0
        t = int(recall_T.argmax())
        return float(recall_T[t]), float(self.precision_T[t])


class Curve(NamedTuple):
    """Precision and recall of SQuAD 2.0, in 0..1, at every threshold for "no answer".

    A question is answered if its probability of "no answer" does not exceed the threshold. At the first threshold,
    minus infinity, no question is answered; the precision is 1 and the recall 0.
    """

    precision_T: Doubles
    recall_T: Doubles
    threshold_T: Doubles

    @property
    def average_precision(self) -> float:
        return float(compute_running_sums(self.precision_T[1:] * np.diff(self.recall_T))[-1])


def compute_running_sums(terms: Doubles) -> Doubles:
    # The official scripts add one by one; numpy's pairwise sum would differ in the last digits.
    return np.add.accumulate(terms)


def _safe_divide(dividend_T: Doubles, divisor_T: Doubles) -> Doubles:
    return np.divide(dividend_T, divisor_T, out=np.zeros_like(dividend_T), where=divisor_T != 0)
