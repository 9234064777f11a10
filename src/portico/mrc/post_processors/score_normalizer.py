"""Confidence that can be compared between boolean and other questions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from portico.mrc.answers.span_records import SpanRecord
from portico.mrc.features.labels import TargetType


class ScoreNormalizer:
    """Replaces the confidence of every example's best record by the probability that a classifier gives it.

    Args:
        classifier: Has ``predict_proba``, whose second column is the confidence, as scikit-learn's classifiers have;
            it sees whether the question is boolean, start logit, end logit and the logit of ``NO_ANSWER``.
    """

    def __init__(self, classifier: Any) -> None:
        self._classifier = classifier

    def normalize(
        self, predictions: Mapping[str, Sequence[SpanRecord]], boolean_answers: Mapping[str, str]
    ) -> dict[str, list[SpanRecord]]:
        """Return the records with new confidences; boolean questions are answered by yes or no and no span.

        Args:
            predictions: Records of each example, best first.
            boolean_answers: ``"yes"`` or ``"no"`` for each example whose question is boolean.
        """
        best = {example_id: records[0] for example_id, records in predictions.items()}
        features = [_features(record, example_id in boolean_answers) for example_id, record in best.items()]
        confidences = self._classifier.predict_proba(np.array(features, np.float64))[:, 1].tolist()
        normalized = {}
        for (example_id, record), confidence in zip(best.items(), confidences, strict=True):
            first = {**record, "confidence_score": confidence}
            if example_id in boolean_answers:
                first["yes_no_answer"] = int(TargetType.from_bool_label(boolean_answers[example_id]))
                first["span_answer"] = {"start_position": -1, "end_position": -1}
            normalized[example_id] = [first, *predictions[example_id][1:]]
        return normalized


def _features(record: SpanRecord, is_boolean: bool) -> list[float]:
    no_answer = record["target_type_logits"][TargetType.NO_ANSWER]
    return [float(is_boolean), record["start_logit"], record["end_logit"], no_answer]
