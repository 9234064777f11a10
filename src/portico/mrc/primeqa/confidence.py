"""PrimeQA's confidence in its answers: classifiers of scikit-learn that score spans and normalize scores.

Shape suffixes: E examples, N records of one example.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.features.labels import TargetType
from portico.trust.files import load_classifier

SpanRecord: TypeAlias = dict[str, Any]
"""A possible answer, with PrimeQA's keys."""

_NUM_FEATURES = 14  # of `ConfidenceScorer`
_RIGHT_FROM_F1 = 0.5


class ConfidenceScorer:
    """Scores spans with a classifier of scikit-learn, by default a small network, stored by joblib.

    Args:
        confidence_model_path: The classifier; it has ``predict_proba``, whose second column is the confidence.

    An ``InputError`` is raised if the file does not exist or joblib is not installed.
    """

    def __init__(self, confidence_model_path: str | Path) -> None:
        path = Path(confidence_model_path)
        if not path.is_file():
            raise InputError(
                f"The file `confidence_model_path={path}` does not exist; set it to a classifier stored by joblib, or "
                "leave it out."
            )
        self._model = load_classifier("confidence_model_path", path)

    def predict_scores(self, records: Sequence[SpanRecord]) -> npt.NDArray[np.float64]:
        """Return the confidence in each record of one example, ``float64 [N]`` in 0..1."""
        return self._model.predict_proba(self.make_features(records))[:, 1]

    @staticmethod
    def make_features(records: Sequence[SpanRecord]) -> npt.NDArray[np.float64]:
        """Return the classifier's inputs for the records of one example, ``float64 [N, 14]``."""
        softmax_N = np.array([record["normalized_span_answer_score"] for record in records], np.float64)
        types = [record["target_type_logits"] for record in records]
        is_span = [logits[TargetType.SPAN_ANSWER] == max(logits) for logits in types]
        agreement = _agreement([record["span_answer"] for record in records])
        rows = [
            [
                record["span_answer_score"],
                record["cls_score"],
                record["start_logit"],
                record["end_logit"],
                types[n][TargetType.NO_ANSWER],
                types[n][TargetType.SPAN_ANSWER],
                float(is_span[n]),
                float(any(is_span)),
                agreement[n],
                softmax_N[n],
                softmax_N[n] - softmax_N.mean(),
                record["start_stdev"],
                record["end_stdev"],
                record["query_passage_similarity"],
            ]
            for n, record in enumerate(records)
        ]
        return np.array(rows, np.float64).reshape(-1, _NUM_FEATURES)

    @classmethod
    def make_training_data(
        cls, predictions: Mapping[str, Sequence[SpanRecord]], references: Sequence[Mapping[str, Any]]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return features and labels of the best span of each example, ``float64 [E, 14]`` and ``int64 [E]``.

        ``ExtractivePostProcessor.prepare_examples_as_references`` returns the references. A span is right (1) if its
        overlap with a gold span has an F1 of at least one half.
        """
        features, labels = [], []
        for reference in references:
            records = predictions[reference["example_id"][0]]
            gold = zip(reference["start_position"], reference["end_position"], strict=True)
            own = records[0]["span_answer"]
            best = max((_overlap_f1((own["start_position"], own["end_position"]), span) for span in gold), default=0.0)
            features.append(cls.make_features(records)[0])
            labels.append(int(best >= _RIGHT_FROM_F1))
        return np.array(features, np.float64).reshape(-1, _NUM_FEATURES), np.array(labels, np.int64)


def _agreement(spans: Sequence[Mapping[str, int]]) -> list[float]:
    """Return for each span the sum of its F1 with the other spans, divided by the number of spans."""
    pairs = [(span["start_position"], span["end_position"]) for span in spans]
    return [sum(_overlap_f1(a, b) for m, b in enumerate(pairs) if m != n) / len(pairs) for n, a in enumerate(pairs)]


def _overlap_f1(span: tuple[int, int], other: tuple[int, int]) -> float:
    """Return the F1 of two spans; like PrimeQA, count the character after the last one as part of a span."""
    shared = min(span[1], other[1]) - max(span[0], other[0]) + 1
    return max(2 * shared / (span[1] - span[0] + other[1] - other[0] + 2), 0.0)


@dataclass(frozen=True)
class ScoreNormalizer:
    """Replaces the scores of every example's best record by the probability from a classifier.

    Boolean and other questions can then be compared, also by a metric that searches for the best threshold.

    Args:
        classifier: Has ``predict_proba``, whose second column is the confidence, as in scikit-learn; its inputs are
            whether the question is boolean, start logit, end logit and the logit of ``NO_ANSWER``.
    """

    classifier: Any

    def normalize(
        self, predictions: Mapping[str, Sequence[SpanRecord]], boolean_answers: Mapping[str, str]
    ) -> dict[str, list[SpanRecord]]:
        """Return the records with new scores; boolean questions are answered by yes or no and no span.

        ``boolean_answers`` has ``"yes"`` or ``"no"`` for each example whose question is boolean.
        """
        best = {example_id: records[0] for example_id, records in predictions.items()}
        features = [
            [
                float(example_id in boolean_answers),
                record["start_logit"],
                record["end_logit"],
                record["target_type_logits"][TargetType.NO_ANSWER],
            ]
            for example_id, record in best.items()
        ]
        confidences = self.classifier.predict_proba(np.array(features, np.float64))[:, 1].tolist()
        normalized = {}
        for (example_id, record), confidence in zip(best.items(), confidences, strict=True):
            # `ExtractivePostProcessor.prepare_predictions` gives the score of the span to the metric.
            first = {**record, "confidence_score": confidence, "span_answer_score": confidence}
            if example_id in boolean_answers:
                first["yes_no_answer"] = int(TargetType.from_bool_label(boolean_answers[example_id]))
                first["span_answer"] = {"start_position": -1, "end_position": -1}
            normalized[example_id] = [first, *predictions[example_id][1:]]
        return normalized
