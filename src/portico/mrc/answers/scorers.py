"""What the spans of an example are ranked by.

Shape suffixes: F features, N spans.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.answers.candidates import Candidates
from portico.mrc.arrays import Floats, Int64s
from portico.mrc.target_type import TargetType

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


_COMBINATIONS: dict[SupportedSpanScorers, Callable[[Any, Any], Any]] = {
    SupportedSpanScorers.SCORE_DIFF_BASED: lambda difference, type_logit: difference,
    SupportedSpanScorers.TARGET_TYPE_WEIGHTED_SCORE_DIFF: lambda difference, type_logit: difference * type_logit,
    SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF: (
        lambda difference, type_logit: 0.5 * difference + 0.5 * type_logit
    ),
}


@dataclass(frozen=True)
class ScoreDifference:
    """Scores a span by how far it exceeds "no answer" in its own feature, and by its feature's type of answer.

    Args:
        scorer_type: How the two are combined.
    """

    scorer_type: SupportedSpanScorers

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

    def __call__(self, features: Candidates, feature_N: Int64s, start_logit_N: Floats, end_logit_N: Floats) -> Floats:
        """Return the scores, ``float64 [N]``."""
        null_F = features.starts.null_F.astype(np.float64) + features.ends.null_F
        type_F = np.zeros_like(null_F)
        if self.needs_types:
            type_F = features.type_logits_FK[:, TargetType.SPAN_ANSWER].astype(np.float64)
        start_N, end_N = start_logit_N.astype(np.float64), end_logit_N.astype(np.float64)
        scores: Floats = self.score(start_N, end_N, null_F[feature_N], type_F[feature_N])
        return scores

    def score(self, start_logit: Any, end_logit: Any, null_score: Any, type_logit: Any) -> Any:
        """Return the score of one span, or of many as arrays.

        Args:
            start_logit: Logit of its first token.
            end_logit: Logit of its last token.
            null_score: Start plus end logit of the first token of its feature.
            type_logit: Logit of ``SPAN_ANSWER`` of its feature.
        """
        return _COMBINATIONS[self.scorer_type]((start_logit + end_logit) - null_score, type_logit)


def initialize_scorer(scorer_type: str) -> ScoreDifference:
    """Return the scorer of a name of :class:`SupportedSpanScorers`.

    Raises:
        InputError: Lists the names, if there is none of this one.
    """
    names = [scorer.value for scorer in SupportedSpanScorers]
    if scorer_type not in names:
        raise InputError(f"`scorer_type={scorer_type}` is unknown; use one of {', '.join(names)}.")
    return ScoreDifference(SupportedSpanScorers(scorer_type))
