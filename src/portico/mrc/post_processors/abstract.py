"""What every post-processor of PrimeQA's form offers."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from portico.mrc.datasets.examples import Examples
from portico.mrc.post_processing.eval_prediction import EvalPredictionWithProcessing

logger = logging.getLogger(__name__)


class AbstractPostProcessor(ABC):
    """Turns the outputs of a model into predictions, and both sides into what metrics take.

    Args:
        k: Predictions to keep of each example.
        max_answer_length: Longest answer, in tokens.
        single_context_multiple_passages: Whether each example has one context of several passages, and not a context
            for each passage.
        **ignored: Options of other post-processors, as one call makes all of them; they have no effect.
    """

    def __init__(
        self, k: int, max_answer_length: int, single_context_multiple_passages: bool = False, **ignored: Any
    ) -> None:
        if ignored:
            logger.warning("%s has no options %s; they have no effect.", type(self).__name__, ", ".join(ignored))
        self._k = k
        self._max_answer_length = max_answer_length
        self._single_context_multiple_passages = single_context_multiple_passages

    @abstractmethod
    def process(self, examples: Examples, features: Any, predictions: Sequence[Any]) -> Any:
        """Return the predictions for the examples.

        Args:
            examples: The examples.
            features: Their features, grouped by example in the order of the examples.
            predictions: The model's outputs for all features in order.
        """

    @abstractmethod
    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return the gold answers as the metric takes them, one entry an example."""

    def prepare_predictions(self, examples: Examples, processed: Any) -> Any:
        """Return what :meth:`process` returned as the metric takes it, one entry an example; here, as it is."""
        return processed

    def process_references_and_predictions(
        self, examples: Examples, features: Any, predictions: Sequence[Any]
    ) -> EvalPredictionWithProcessing:
        """Return predictions and references; the ``post_process_function`` of an evaluation.

        Args:
            examples: The examples.
            features: Their features, grouped by example in the order of the examples.
            predictions: The model's outputs for all features in order.
        """
        return self.evaluated(examples, self.process(examples, features, predictions))

    def evaluated(self, examples: Examples, processed: Any) -> EvalPredictionWithProcessing:
        """Put what :meth:`process` returned beside its references."""
        return EvalPredictionWithProcessing(
            predictions=processed,
            label_ids=self.prepare_examples_as_references(examples),
            processed_predictions=self.prepare_predictions(examples, processed),
        )
