"""Span post-processing as a trainer takes it: streamed batch by batch, or called on whole arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.answers import AnswerCalibration, BeamPostProcessor, SpanPostProcessor
from portico.mrc.answers.post_processor import SpanSearch
from portico.mrc.answers.scorers import SupportedSpanScorers, initialize_scorer
from portico.mrc.metrics import squad_metrics
from portico.mrc.post_processing.answer_tuning import with_best_null_threshold
from portico.mrc.post_processing.answered_questions import AnsweredQuestions

Mode: TypeAlias = Literal["portico", "hf", "primeqa", "beam_search"]
"""Whose rules answers follow: our own, those of the QA example of transformers, PrimeQA's, those of a beam."""


class StreamedAnswers:
    """The post-processing of one evaluation.

    Args:
        examples: SQuAD records.
        post_processor: Takes the outputs for their features.
        tune_null: Whether the best threshold of "no answer" is sought.
        calibrate: See :class:`AnsweredQuestions`.
    """

    def __init__(
        self,
        examples: Sequence[Mapping[str, Any]],
        post_processor: SpanPostProcessor | BeamPostProcessor,
        *,
        tune_null: bool = False,
        calibrate: bool = False,
    ) -> None:
        self._examples = examples
        self._post_processor = post_processor
        self._tune_null, self._calibrate = tune_null, calibrate

    def update(self, logits: Sequence[Any], feature_indices: npt.NDArray[np.int64]) -> None:
        """Take the model's outputs for a batch of the features at ``feature_indices``."""
        self._post_processor.update_outputs(logits, feature_indices)

    def compute(self) -> AnsweredQuestions:
        """Return the answers to all questions."""
        answers = self._post_processor.compute()
        if self._tune_null:
            answers = with_best_null_threshold(self._examples, answers)
        return AnsweredQuestions(self._examples, answers, calibrate=self._calibrate)


@dataclass(frozen=True)
class SpanPostProcessing:
    """A ``post_process_function`` for extractive readers; :class:`~portico.mrc.trainer.MRCTrainer` streams it.

    Args:
        version_2_with_negative: Whether "no answer" can be predicted.
        n_best_size: Starts, ends and spans that are looked at.
        max_answer_length: Longest answer, in tokens.
        null_score_diff_threshold: "No answer" is predicted where its score exceeds the best span's by more than this;
            ``"best"`` seeks the threshold that gives the best F1 on the labelled questions themselves.
        mode: Whose rules are followed: ``"portico"`` our own, in which ties fall to the lower index, a text is listed
            once, and yes, no and passages are answers where the model classifies them; ``"hf"`` and ``"beam_search"``
            those of the QA examples of transformers, to the byte; ``"primeqa"`` PrimeQA's.
        search: ``"exhaustive"`` looks for the best of all spans; in our own mode only.
        scorer_type: What PrimeQA's mode ranks spans by.
        calibrate: Write beside the answers what turns scores into probabilities, fitted on the labelled questions;
            :class:`~portico.mrc.inference.Reader` finds it with the model.
        calibration: What turns scores into probabilities, in our own mode and PrimeQA's.

    Raises:
        InputError: If there is no such mode or scorer.
    """

    version_2_with_negative: bool
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float | Literal["best"] = 0.0
    mode: Mode = "portico"
    search: SpanSearch = "top"
    scorer_type: str = SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF
    calibrate: bool = False
    calibration: AnswerCalibration | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise InputError(
                f"`mode={self.mode}` is no mode of post-processing; use one of {', '.join(get_args(Mode))}."
            )
        if self.search not in get_args(SpanSearch):
            raise InputError(
                f"`search={self.search}` is no way to look for spans; use one of {', '.join(get_args(SpanSearch))}."
            )
        threshold = self.null_score_diff_threshold
        if isinstance(threshold, str) and threshold != "best":
            raise InputError(f"`null_score_diff_threshold={threshold}` is neither a number nor best; set one of them.")
        if self.search != "top" and self.mode != "portico":
            raise InputError(
                f"`search={self.search}` belongs to our own mode, but `mode={self.mode}`; set `search=top`, or "
                "`mode=portico`."
            )
        initialize_scorer(self.scorer_type)

    def begin(self, examples: Sequence[Mapping[str, Any]], features: Any) -> StreamedAnswers:
        """Start an evaluation of ``features``, the windows of ``examples``."""
        post_processor = (
            self._beams(examples, features) if self.mode == "beam_search" else self._spans(examples, features)
        )
        tune_null = self.null_score_diff_threshold == "best"
        return StreamedAnswers(examples, post_processor, tune_null=tune_null, calibrate=self.calibrate)

    def __call__(
        self, examples: Sequence[Mapping[str, Any]], features: Any, predictions: Sequence[Any], stage: str = "eval"
    ) -> AnsweredQuestions:
        """Post-process whole arrays of logits, as the QA example of transformers calls it."""
        streamed = self.begin(examples, features)
        streamed.update(predictions, np.arange(len(features)))
        return streamed.compute()

    def _beams(self, examples: Sequence[Mapping[str, Any]], features: Any) -> BeamPostProcessor:
        return BeamPostProcessor(
            examples,
            features,
            version_2_with_negative=self.version_2_with_negative,
            n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
        )

    def _spans(self, examples: Sequence[Mapping[str, Any]], features: Any) -> SpanPostProcessor:
        threshold = self.null_score_diff_threshold
        return SpanPostProcessor(
            examples,
            features,
            version_2_with_negative=self.version_2_with_negative,
            n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
            null_score_diff_threshold=0.0 if isinstance(threshold, str) else threshold,
            ties="hf" if self.mode == "hf" else "deterministic",
            search=self.search,
            scorer=initialize_scorer(self.scorer_type) if self.mode == "primeqa" else None,
            calibration=self.calibration,
        )


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
