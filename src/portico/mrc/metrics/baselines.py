"""What a metric reports of trivial answers: the baselines of a run, and the names of its scores before it begins."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from portico.errors import InputError
from portico.mrc.metrics.rouge import Rouge
from portico.mrc.metrics.spans import SpanScores
from portico.mrc.metrics.squad import AnswerTexts, SquadV2

_NO_SPAN = {"start_position": -1, "end_position": -1, "passage_index": -1, "yes_no_answer": "none"}


def scores_of_texts(
    metric: object,
    examples: Sequence[Mapping[str, Any]],
    texts: Mapping[str, str] | None = None,
    *,
    no_answer_probability: float | None = None,
) -> dict[str, float]:
    """Return what the ``compute_metrics`` of a run reports for these answers, ``{id: text}``, by default none to any.

    Nothing, ``{}``, is known of a metric of the user's own, and of texts by a metric of spans. The examples have
    ``id`` and ``answers``; if the run predicts probabilities of "no answer", the same one is given for all.
    """
    if isinstance(metric, SpanScores) and texts is None:
        return metric.of([{"example_id": one["id"], **_NO_SPAN, "confidence_score": 0.0} for one in examples])
    if not isinstance(metric, AnswerTexts | SquadV2 | Rouge):
        return {}
    more = {} if no_answer_probability is None else {"no_answer_probability": no_answer_probability}
    answered = texts or {}
    predictions = [{"id": one["id"], "prediction_text": answered.get(one["id"], ""), **more} for one in examples]
    metric = metric.clone()
    metric.distributed_available_fn = _never  # this process has all examples, and may be the only one that asks
    metric.update(predictions, examples)
    scores: dict[str, float] = metric.compute()
    return scores


def _never() -> bool:
    return False


def check_score(setting: str, value: str, names: Collection[str]) -> None:
    """Refuse a setting that names none of the scores of a run; the message lists them, the nearest first."""
    if value not in names:
        nearest = get_close_matches(value, names, n=len(names), cutoff=0.0)
        raise InputError(f"`{setting}={value}` is not a score of this run; set it to one of {', '.join(nearest)}.")
