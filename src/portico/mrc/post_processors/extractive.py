"""Spans of a context as answers, ranked by PrimeQA's rules."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.answers.scorers import SupportedSpanScorers, initialize_scorer
from portico.mrc.answers.span_records import SpanRecord, SpanRecords
from portico.mrc.datasets.examples import Examples
from portico.mrc.features.labels import TargetType
from portico.mrc.post_processing.eval_prediction import EvalPredictionWithProcessing
from portico.mrc.post_processors.abstract import AbstractPostProcessor
from portico.mrc.post_processors.confidence import ConfidenceScorer

_OUTPUTS = ("start_logits", "end_logits", "target_type_logits")
_CONFIDENCE_OUTPUTS = (*_OUTPUTS, "start_stdev", "end_stdev", "query_passage_similarity")


class ExtractivePostProcessor(AbstractPostProcessor):
    """Keeps the ``k`` best spans of each example with all that is known of them.

    Given to :class:`~portico.mrc.trainer.MRCTrainer` itself as ``post_process_function``, it streams; its bound
    methods take the outputs of all features at once.

    Args:
        k: Spans to keep of each example.
        max_answer_length: Longest answer, in tokens.
        n_best_size: Starts and ends that are looked at in each feature.
        scorer_type: What spans are ranked by; one of :class:`~portico.mrc.answers.scorers.SupportedSpanScorers`.
        single_context_multiple_passages: Whether each example has one context of several passages, and not a context
            for each passage.
        output_confidence_feature: Whether the model gives start deviations, end deviations and similarities too.
        confidence_model_path: A classifier for :class:`~portico.mrc.post_processors.confidence.ConfidenceScorer`; its
            probability then is each record's ``confidence_score``.
        **ignored: Options of other post-processors; they have no effect.

    Raises:
        InputError: If there is no such scorer.
    """

    def __init__(
        self,
        k: int,
        max_answer_length: int,
        n_best_size: int,
        scorer_type: str = SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF,
        single_context_multiple_passages: bool = False,
        output_confidence_feature: bool = False,
        confidence_model_path: str | None = None,
        **ignored: Any,
    ) -> None:
        super().__init__(k, max_answer_length, single_context_multiple_passages, **ignored)
        self._n_best_size = n_best_size
        self._scorer = initialize_scorer(scorer_type)
        self._outputs = _CONFIDENCE_OUTPUTS if output_confidence_feature else _OUTPUTS
        self._confidence = None if confidence_model_path is None else ConfidenceScorer(confidence_model_path)

    def begin(self, examples: Examples, features: Any) -> "StreamedRecords":
        """Start an evaluation of ``features``, the windows of ``examples``."""
        ranking = SpanRecords(
            examples,
            features,
            k=self._k,
            n_best_size=self._n_best_size,
            max_answer_length=self._max_answer_length,
            scorer=self._scorer,
            single_context=self._single_context_multiple_passages,
        )
        return StreamedRecords(self, examples, ranking)

    def __call__(self, examples: Examples, features: Any, predictions: Sequence[Any]) -> EvalPredictionWithProcessing:
        """Return predictions and references; see :meth:`process_references_and_predictions`."""
        return self.process_references_and_predictions(examples, features, predictions)

    def process(self, examples: Examples, features: Any, predictions: Sequence[Any]) -> dict[str, list[SpanRecord]]:
        """Return the records of every example, best first, by its identifier.

        Args:
            examples: The examples.
            features: Their features, grouped by example in the order of the examples.
            predictions: Start logits and end logits, ``float [F, L]``, answer-type logits, ``float [F, 5]``, and with
                ``output_confidence_feature`` start and end deviations, ``float [F, L]``, and similarities,
                ``float [F]``.

        Raises:
            InputError: If arrays or rows are missing, or the features do not fit the examples.
        """
        streamed = self.begin(examples, features)
        streamed.update(predictions, np.arange(len(features)))
        return streamed.records()

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return the gold answers: a list an annotator under each key, one entry an example."""
        return [_reference(example) for example in examples]

    def prepare_predictions(self, examples: Examples, processed: dict[str, list[SpanRecord]]) -> list[dict[str, Any]]:
        """Return the best span of every example."""
        return [
            {
                "example_id": example_id,
                **records[0]["span_answer"],
                "passage_index": records[0]["passage_index"],
                "yes_no_answer": records[0]["yes_no_answer"],
                "confidence_score": records[0]["span_answer_score"],
            }
            for example_id, records in processed.items()
        ]

    def completed(self, examples: Examples, records: dict[str, list[SpanRecord]]) -> dict[str, list[SpanRecord]]:
        """Add to the records what ranking does not know: here, the confidence."""
        if self._confidence is not None:
            for of_example in records.values():
                for record, score in zip(of_example, self._confidence.predict_scores(of_example), strict=True):
                    record["confidence_score"] = float(score)
        return records

    def check_outputs(self, outputs: Sequence[Any]) -> None:
        """Refuse another number of arrays than the model must give, or arrays of different lengths.

        Raises:
            InputError: Names the arrays.
        """
        lengths = [len(output) for output in outputs]
        if len(lengths) != len(self._outputs) or len(set(lengths)) != 1:
            raise InputError(
                f"`predictions` holds {len(lengths)} arrays of {lengths} rows, but must be {len(self._outputs)} "
                f"arrays with a row a feature: {', '.join(self._outputs)}; set `output_confidence_feature` exactly "
                "where the model gives start_stdev, end_stdev and query_passage_similarity too."
            )


class StreamedRecords:
    """The post-processing of one evaluation.

    Args:
        post_processor: Completes the records and finds their references.
        examples: The examples.
        ranking: Takes the outputs of their features.
    """

    def __init__(self, post_processor: ExtractivePostProcessor, examples: Examples, ranking: SpanRecords) -> None:
        self._post_processor, self._examples, self._ranking = post_processor, examples, ranking

    def update(self, outputs: Sequence[Any], feature_indices: npt.NDArray[np.int64]) -> None:
        """Take the outputs of a batch of the features at ``feature_indices``."""
        self._post_processor.check_outputs(outputs)
        self._ranking.update(outputs, feature_indices)

    def records(self) -> dict[str, list[SpanRecord]]:
        """Return the records of every example."""
        return self._post_processor.completed(self._examples, self._ranking.compute())

    def compute(self) -> EvalPredictionWithProcessing:
        """Return records, metric-ready predictions and references."""
        return self._post_processor.evaluated(self._examples, self.records())


def _reference(example: Any) -> dict[str, Any]:
    target = example["target"]
    num_annotators = len(target["start_positions"])
    context = example["context"]
    once = {
        "example_id": example["example_id"],
        "language": example.get("language", "UNKNOWN"),
        "document_plaintext": example.get("document_plaintext")
        or (context if isinstance(context, str) else context[0]),
        "question": example["question"],
    }
    return {
        "start_position": target["start_positions"],
        "end_position": target["end_positions"],
        "passage_index": target["passage_indices"],
        "yes_no_answer": [int(TargetType.from_bool_label(label)) for label in target["yes_no_answer"]],
        **{key: [value] * num_annotators for key, value in once.items()},
    }
