"""Span post-processing as a trainer takes it: streamed batch by batch, or called on whole arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers.trainer_utils import EvalPrediction

from portico.mrc.answers import Answers, SpanPostProcessor
from portico.mrc.answers.top_tokens import Ties
from portico.mrc.metrics import squad_metrics


class AnsweredQuestions(EvalPrediction):
    """Answers beside their references, as ``compute_metrics`` takes them.

    Args:
        examples: SQuAD records.
        answers: The answers to them.

    Attributes:
        predictions: ``{"id", "prediction_text"}`` of each question, with ``"no_answer_probability"`` for SQuAD 2.0.
        label_ids: ``{"id", "answers"}`` of each question.
        answers: The answers with their spans, candidates and null odds.
    """

    def __init__(self, examples: Sequence[Mapping[str, Any]], answers: Answers) -> None:
        self.answers = answers
        references = [{"id": example["id"], "answers": example["answers"]} for example in examples]
        super().__init__(predictions=_formatted(answers), label_ids=references)  # type: ignore[arg-type]

    def write(self, folder: str | Path, prefix: str) -> None:
        """Write predictions, n-best lists and null odds into ``folder``; file names begin with ``prefix``."""
        self.answers.write(folder, prefix)


class StreamedAnswers:
    """The post-processing of one evaluation.

    Args:
        examples: SQuAD records.
        post_processor: Takes the logits of their features.
    """

    def __init__(self, examples: Sequence[Mapping[str, Any]], post_processor: SpanPostProcessor) -> None:
        self._examples = examples
        self._post_processor = post_processor

    def update(self, logits: Sequence[Any], feature_indices: npt.NDArray[np.int64]) -> None:
        """Take the start and end logits of a batch, ``float [B, L]`` each, of the features at ``feature_indices``."""
        self._post_processor.update(logits[0], logits[1], feature_indices)

    def compute(self) -> AnsweredQuestions:
        """Return the answers to all questions."""
        return AnsweredQuestions(self._examples, self._post_processor.compute())


@dataclass(frozen=True)
class SpanPostProcessing:
    """A ``post_process_function`` for extractive readers; :class:`~portico.mrc.trainer.MRCTrainer` streams it.

    Args:
        version_2_with_negative: Whether "no answer" can be predicted.
        n_best_size: Starts, ends and spans that are looked at.
        max_answer_length: Longest answer, in tokens.
        null_score_diff_threshold: "No answer" is predicted where its score exceeds the best span's by more than this.
        ties: Order of equal logits, ``"deterministic"`` or ``"hf"``.
    """

    version_2_with_negative: bool
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float = 0.0
    ties: Ties = field(default="deterministic")

    def begin(self, examples: Sequence[Mapping[str, Any]], features: Any) -> StreamedAnswers:
        """Start an evaluation of ``features``, the windows of ``examples``."""
        post_processor = SpanPostProcessor(
            examples,
            features,
            version_2_with_negative=self.version_2_with_negative,
            n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
            null_score_diff_threshold=self.null_score_diff_threshold,
            ties=self.ties,
        )
        return StreamedAnswers(examples, post_processor)

    def __call__(
        self, examples: Sequence[Mapping[str, Any]], features: Any, predictions: Sequence[Any], stage: str = "eval"
    ) -> AnsweredQuestions:
        """Post-process whole arrays of logits, as the QA example of transformers calls it."""
        streamed = self.begin(examples, features)
        streamed.update(predictions, np.arange(len(features)))
        return streamed.compute()


class SquadMetrics:
    """``compute_metrics`` for answered questions: exact match and F1 of SQuAD.

    Args:
        version_2_with_negative: Whether some questions have no answer.
    """

    def __init__(self, version_2_with_negative: bool) -> None:
        self.version_2_with_negative = version_2_with_negative

    def __call__(self, answered: AnsweredQuestions) -> dict[str, float]:
        """Return the metrics of all questions, in 0..100."""
        predictions: Any = answered.predictions
        references: Any = answered.label_ids
        return squad_metrics(predictions, references, self.version_2_with_negative)


def _formatted(answers: Answers) -> list[dict[str, Any]]:
    if answers.null_odds is None:
        return [{"id": key, "prediction_text": text} for key, text in answers.predictions.items()]
    return [
        {"id": key, "prediction_text": text, "no_answer_probability": _sigmoid(answers.null_odds[key])}
        for key, text in answers.predictions.items()
    ]


def _sigmoid(odds: float) -> float:
    # tanh does not overflow, whatever the odds.
    return float(0.5 + 0.5 * np.tanh(0.5 * odds))
