"""What the spans of an example are ranked by.

Shape suffixes: F features, N spans.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.answers.candidates import Candidates
from portico.mrc.arrays import Floats, Int64s
from portico.mrc.features.labels import TargetType

SpanScorer: TypeAlias = Callable[[Candidates, Int64s, Floats, Floats], Floats]
"""``f(features, feature_N, start_logit_N, end_logit_N)``: the scores of spans of these rows of the features."""


def sum_of_logits(features: Candidates, feature_N: Int64s, start_logit_N: Floats, end_logit_N: Floats) -> Floats:
    """Return start plus end logit, in their dtype."""
    return start_logit_N + end_logit_N


class SupportedSpanScorers(StrEnum):
    """PrimeQA's scores of a span, by the names of its ``scorer_type``."""

    SCORE_DIFF_BASED = "score_diff_based"
    TARGET_TYPE_WEIGHTED_SCORE_DIFF = "target_type_weighted_score_diff"
    WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF = "weighted_sum_target_type_and_score_diff"

    @classmethod
    def get_supported(cls) -> list[str]:
        """Return the names."""
        return [scorer.value for scorer in cls]


@dataclass(frozen=True)
class ScoreDifference:
    """Scores a span by how far it exceeds "no answer" in its own feature, and by its feature's type of answer.

    Args:
        scorer_type: How the two are combined.
        target_type_weight: Share of the answer type in a weighted sum, 0 to 1.
    """

    scorer_type: SupportedSpanScorers
    target_type_weight: float = 0.5

    @property
    def needs_types(self) -> bool:
        """Whether the model must classify the kind of answer."""
        return self.scorer_type != SupportedSpanScorers.SCORE_DIFF_BASED

    def check(self, features: Candidates) -> None:
        """Refuse outputs that lack what the score is made of.

        Raises:
            InputError: If the model gave no answer-type logits but the score weighs them.
        """
        if self.needs_types and features.type_logits_FK.shape[1] == 0:
            raise InputError(
                f"The model gave no answer-type logits, which `scorer_type={self.scorer_type}` weighs spans by; use a "
                "model with an extractive head that classifies the kind of answer, or `scorer_type=score_diff_based`."
            )

    def __call__(
        self, span_score: float, null_span_score: float, target_type_logits: Sequence[float] | None = None
    ) -> float:
        """Return the score of one span, as PrimeQA calls its scorers.

        Args:
            span_score: Sum of the logits of its first and last token.
            null_span_score: Sum of the start and end logit of the first token of its feature.
            target_type_logits: Scores of the answer types of its feature; not read where only the difference counts.

        Raises:
            InputError: If the answer type counts and there are no logits of it.
        """
        if self.needs_types and target_type_logits is None:
            raise InputError(f"`scorer_type={self.scorer_type}` weighs the type of answer; give `target_type_logits`.")
        type_logit = 0.0 if target_type_logits is None else target_type_logits[TargetType.SPAN_ANSWER]
        score: float = self._combined(span_score - null_span_score, type_logit)
        return score

    def of_spans(self, features: Candidates, feature_N: Int64s, start_logit_N: Floats, end_logit_N: Floats) -> Floats:
        """Return the scores of many spans, ``float64 [N]``; a :data:`SpanScorer`."""
        null_F = features.starts.null_F.astype(np.float64) + features.ends.null_F
        type_F = np.zeros_like(null_F)
        if self.needs_types:
            type_F = features.type_logits_FK[:, TargetType.SPAN_ANSWER].astype(np.float64)
        sum_N = start_logit_N.astype(np.float64) + end_logit_N.astype(np.float64)
        scores: Floats = self._combined(sum_N - null_F[feature_N], type_F[feature_N])
        return scores

    def _combined(self, difference: Any, type_logit: Any) -> Any:
        if self.scorer_type == SupportedSpanScorers.SCORE_DIFF_BASED:
            return difference
        if self.scorer_type == SupportedSpanScorers.TARGET_TYPE_WEIGHTED_SCORE_DIFF:
            return difference * type_logit
        return (1 - self.target_type_weight) * difference + self.target_type_weight * type_logit


def initialize_scorer(scorer_type: str, target_type_weight: float = 0.5) -> ScoreDifference:
    """Return the scorer of a name of :class:`SupportedSpanScorers`.

    Args:
        scorer_type: The name.
        target_type_weight: Share of the answer type in a weighted sum, 0 to 1.

    Raises:
        InputError: Lists the names, if there is none of this one; or if the weight is out of range.
    """
    names = SupportedSpanScorers.get_supported()
    if scorer_type not in names:
        raise InputError(f"`scorer_type={scorer_type}` is unknown; use one of {', '.join(names)}.")
    if not 0 <= target_type_weight <= 1:
        raise InputError(f"`target_type_weight={target_type_weight}` is no share; use a number from 0 to 1.")
    return ScoreDifference(SupportedSpanScorers(scorer_type), target_type_weight)
