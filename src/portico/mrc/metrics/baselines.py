"""Scores of trivial answers: the baselines of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from portico.mrc.metrics.rouge import Rouge
from portico.mrc.metrics.spans import SpanScores, scores_alone
from portico.mrc.metrics.squad import AnswerTexts, SquadV2

_NO_SPAN = {"start_position": -1, "end_position": -1, "passage_index": -1, "yes_no_answer": "none"}


def scores_of_texts(
    metric: object,
    examples: Sequence[Mapping[str, Any]],
    texts: Mapping[str, str] | None = None,
    *,
    no_answer_probability: float | None = None,
) -> dict[str, float]:
    """Return the scores that a run would report for trivial answers.

    Args:
        metric: The ``compute_metrics`` of the run.
        examples: The questions, with ``id`` and ``answers``.
        texts: The answers, ``{id: text}``; ``None`` answers no question.
        no_answer_probability: The same probability of "no answer" for all questions; ``None`` if the run predicts no
            probabilities.

    Returns:
        Scores by name; ``{}`` for a metric of the user, and for texts if the metric scores spans.
    """
    if isinstance(metric, SpanScores) and texts is None:
        return metric.of([{"example_id": one["id"], **_NO_SPAN, "confidence_score": 0.0} for one in examples])
    if not isinstance(metric, AnswerTexts | SquadV2 | Rouge):
        return {}
    more = {} if no_answer_probability is None else {"no_answer_probability": no_answer_probability}
    answered = texts or {}
    predictions = [{"id": one["id"], "prediction_text": answered.get(one["id"], ""), **more} for one in examples]
    return scores_alone(metric, predictions, examples)
