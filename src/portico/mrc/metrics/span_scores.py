"""Metrics of where answers are, for runs whose post-processing gives texts and spans."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torchmetrics import Metric

Example = Mapping[str, Any]

# How the columns of an example's "target" are called in a reference.
_TARGET_COLUMNS = {
    "start_positions": "start_position",
    "end_positions": "end_position",
    "passage_indices": "passage_index",
    "yes_no_answer": "yes_no_answer",
}


class SpanScores:
    """``compute_metrics`` that scores the spans of answered questions with `TydiF1` or `NqF1`.

    These metrics find the threshold for "no answer" themselves, so each question counts with its best span.

    Args:
        metric: The metric.
        examples: The examples that are evaluated, with ``id``, perhaps ``language``, and what annotators said as
            ``target`` in PrimeQA's base schema; of SQuAD's ``answers`` each counts as one annotator.
    """

    def __init__(self, metric: Metric, examples: Sequence[Example]) -> None:
        self.metric = metric
        self._references = {example["id"]: span_reference(example) for example in examples}

    @property
    def most_annotators(self) -> int:
        """How many annotators said something of the question of which most did."""
        return max((len(reference["start_position"]) for reference in self._references.values()), default=0)

    def __call__(self, answered: Any) -> dict[str, float]:
        """Return the metrics of the answers, which every process has of all questions.

        Args:
            answered: Has ``answers``, :class:`~portico.mrc.postprocess.Answers`.
        """
        predictions = span_predictions(answered.answers)
        metric = self.metric.clone()
        metric.sync_on_compute = False
        metric.update(predictions, [self._references[record["example_id"]] for record in predictions])
        scores: dict[str, float] = metric.compute()
        return scores


def span_predictions(answers: Any) -> list[dict[str, Any]]:
    """Return the best span of every question as PrimeQA's metrics take it.

    Args:
        answers: :class:`~portico.mrc.postprocess.Answers`.
    """
    best = answers.at_null_threshold(np.inf)
    records = []
    for key, span in best.spans.items():
        start, end = span or (-1, -1)
        records.append(
            {
                "example_id": key,
                "start_position": start,
                "end_position": end,
                "passage_index": best.passages[key],
                "yes_no_answer": int(best.answer_types[key]),
                "confidence_score": _confidence(best, key),
            }
        )
    return records


def span_reference(example: Example) -> dict[str, Any]:
    """Return what annotators said of an example as PrimeQA's metrics take it, one list a field."""
    common = {"example_id": example["id"], "language": example.get("language", "UNKNOWN")}
    if "target" in example:
        return {**common, **{name: example["target"][column] for column, name in _TARGET_COLUMNS.items()}}
    texts, starts = example["answers"]["text"], example["answers"]["answer_start"]
    num_answers = len(texts)
    return {
        **common,
        "start_position": list(starts),
        "end_position": [start + len(text) for text, start in zip(texts, starts, strict=True)],
        "passage_index": [0] * num_answers,
        "yes_no_answer": ["NONE"] * num_answers,
    }


def _confidence(answers: Any, key: str) -> float:
    if answers.null_odds is not None:
        return -float(answers.null_odds[key])
    candidates = answers.nbest[key]
    return float(candidates[0]["probability"]) if candidates else 0.0
