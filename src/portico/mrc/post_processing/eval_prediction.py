"""What a post-processing gives to metrics and files, in PrimeQA's form."""

from typing import Any, NamedTuple


class EvalPredictionWithProcessing(NamedTuple):
    """Answers in full, beside what a metric takes of them.

    Args:
        predictions: Candidates of each question, as they are written.
        label_ids: References, as the metric takes them.
        processed_predictions: Answers, as the metric takes them.
    """

    predictions: Any
    label_ids: Any
    processed_predictions: Any
