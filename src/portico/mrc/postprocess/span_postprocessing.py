"""Extractive post-processing as a trainer uses it: streamed batch by batch, or called on whole arrays."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from transformers import EvalPrediction

from portico.errors import InputError
from portico.mrc.datasets.examples import Examples
from portico.mrc.metrics import SquadV1, SquadV2
from portico.mrc.postprocess.answers import Answers
from portico.mrc.postprocess.calibration import AnswerCalibration, calibration_of, sigmoid, use_best_null_threshold
from portico.mrc.postprocess.ranking import SupportedSpanScorers, initialize_scorer
from portico.mrc.postprocess.streaming import BeamPostProcessor, SpanPostProcessor, SpanSearch
from portico.mrc.postprocess.token_offsets import Features

Mode: TypeAlias = Literal["portico", "hf", "primeqa", "beam_search"]
"""Whose rules answers follow: portico's, the QA example of transformers (``hf`` and, for beams, ``beam_search``) or
PrimeQA's."""

logger = logging.getLogger(__name__)

_RECORDS_AT_ONCE = 1024


class AnsweredQuestions(EvalPrediction):
    """Answers to SQuAD records with their references, as ``compute_metrics`` takes them.

    Attributes:
        predictions: ``{"id", "prediction_text"}`` of each question, with ``"no_answer_probability"`` for SQuAD 2.0.
        label_ids: ``{"id", "answers"}`` of each question; ``None`` for questions without labels.
        answers: The answers with their spans, candidates and null odds.
        is_labelled: Whether the questions have labels.
    """

    def __init__(self, examples: Examples, answers: Answers, *, calibrate: bool = False) -> None:
        self.answers = answers
        self._examples = examples
        self._calibrate = calibrate
        self.is_labelled = all("answers" in example for example in examples)
        self.inputs = self.losses = None

    @cached_property
    def predictions(self) -> Any:  # type: ignore[override]  # made when somebody asks
        return [record for batch in self.batches() for record in batch.predictions]

    @cached_property
    def label_ids(self) -> Any:  # type: ignore[override]
        return [record for batch in self.batches() for record in batch.label_ids] if self.is_labelled else None

    @property
    def elements(self) -> tuple[Any, ...]:  # type: ignore[override]
        return self.predictions, self.label_ids

    def batches(self) -> Iterator[EvalPrediction]:
        """Yield the questions some at a time: all records together take more memory than what they are made from."""
        answers = self.answers
        odds = answers.null_odds
        probability_E = None if odds is None else sigmoid(np.fromiter(odds.values(), np.float64, len(odds)))
        texts = iter(answers.predictions.items())
        for first in range(0, len(self._examples), _RECORDS_AT_ONCE):
            records: Any = [{"id": key, "prediction_text": text} for key, text in islice(texts, _RECORDS_AT_ONCE)]
            if probability_E is not None:
                for record, probability in zip(records, probability_E[first:][: len(records)].tolist(), strict=True):
                    record["no_answer_probability"] = probability
            references: Any = None
            if self.is_labelled:
                some = (self._examples[e] for e in range(first, first + len(records)))
                references = [{"id": example["id"], "answers": example["answers"]} for example in some]
            yield EvalPrediction(records, references)

    def write(self, folder: str | Path, prefix: str) -> None:
        """Write predictions, n-best lists and null odds into ``folder``; file names begin with ``prefix``."""
        self.answers.write(folder, prefix)
        if self._calibrate:
            try:
                calibration_of(self._examples, self.answers).save(folder)
            except InputError as error:
                # A model may find no answer at all at the beginning of its training.
                logger.warning("The answers are not calibrated. %s", error)


@dataclass(frozen=True)
class StreamedAnswers:
    """The post-processing of one evaluation."""

    rules: "SpanPostProcessing"
    examples: Examples
    post_processor: SpanPostProcessor | BeamPostProcessor

    def update(self, logits: Sequence[Any], feature_indices: npt.NDArray[np.int64]) -> None:
        self.post_processor.update_outputs(logits, feature_indices)

    def compute(self) -> AnsweredQuestions:
        answers = self.post_processor.compute()
        if self.rules.null_score_diff_threshold == "best":
            answers = use_best_null_threshold(self.examples, answers)
        return AnsweredQuestions(self.examples, answers, calibrate=self.rules.calibrate)


@dataclass(frozen=True)
class SpanPostProcessing:
    """A ``post_process_function`` for extractive models; :class:`~portico.mrc.trainer.MRCTrainer` streams it.

    For the arguments that are not listed see :class:`~portico.mrc.SpanPostProcessor`.

    Args:
        null_score_diff_threshold: ``"best"`` uses the threshold with the best F1 on the labelled questions themselves.
        mode: Whose rules are followed. ``"portico"``: ties go to the lower index, each text is listed once, and yes,
            no and passages can be answers if the model classifies them. ``"hf"`` and ``"beam_search"``: the same files
            as the QA examples of transformers, to the byte. ``"primeqa"``: PrimeQA's rules.
        search: ``"exhaustive"`` in mode ``"portico"`` only.
        scorer_type: What mode ``"primeqa"`` ranks spans by.
        calibrate: Write a calibration of the scores, fitted on the labelled questions, next to the answers;
            :class:`~portico.mrc.inference.Reader` loads it with the model.
        calibration: Maps scores to probabilities, in modes ``"portico"`` and ``"primeqa"``.

    Raises:
        InputError: If the mode, the search or the scorer is unknown, or they cannot be combined.
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
        for name, allowed in {"mode": get_args(Mode), "search": get_args(SpanSearch)}.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"Unknown `{name}={getattr(self, name)}`; expected one of {', '.join(allowed)}.")
        threshold = self.null_score_diff_threshold
        if math.isnan(threshold) if isinstance(threshold, int | float) else threshold != "best":
            raise InputError(f"`null_score_diff_threshold={threshold}` is invalid; set it to a number or to best.")
        if self.search != "top" and self.mode != "portico":
            raise InputError(
                f"`search={self.search}` is not available with `mode={self.mode}`; set `search=top` or `mode=portico`."
            )
        initialize_scorer(self.scorer_type)

    def begin(self, examples: Examples, features: Features) -> StreamedAnswers:
        """Start an evaluation of ``features``, the windows of ``examples``."""
        options: dict[str, Any] = {
            "version_2_with_negative": self.version_2_with_negative,
            "n_best_size": self.n_best_size,
            "max_answer_length": self.max_answer_length,
        }
        if self.version_2_with_negative and self.mode == "hf" and getattr(features, "null_token", np.zeros(1)).any():
            warn_of_first_token()
        if self.mode == "beam_search":
            return StreamedAnswers(self, examples, BeamPostProcessor(examples, features, **options))
        threshold = self.null_score_diff_threshold
        post_processor = SpanPostProcessor(
            examples,
            features,
            **options,
            null_score_diff_threshold=0.0 if isinstance(threshold, str) else threshold,
            ties="hf" if self.mode == "hf" else "deterministic",
            search=self.search,
            scorer=initialize_scorer(self.scorer_type) if self.mode == "primeqa" else None,
            calibration=self.calibration,
        )
        return StreamedAnswers(self, examples, post_processor)

    def __call__(
        self, examples: Examples, features: Features, predictions: Sequence[Any], stage: str = "eval"
    ) -> AnsweredQuestions:
        """Post-process whole arrays of logits, as the QA example of transformers calls it."""
        streamed = self.begin(examples, features)
        streamed.update(predictions, np.arange(len(features)))
        return streamed.compute()


@cache
def warn_of_first_token() -> None:
    """Warn once that the rules of transformers score another token than the one that is labelled with "no answer"."""
    logger.warning(
        '`mode=hf` scores "no answer" at the first token, as the QA example of transformers does, but these '
        "features are labelled with another one, such as a class token at the end; use `mode=portico` to score the "
        "labelled token."
    )


@dataclass(frozen=True)
class SquadMetrics:
    """``compute_metrics`` for answered questions: exact match and F1 of SQuAD, in 0..100; see ``squad_metrics``."""

    version_2_with_negative: bool

    def __call__(self, answered: AnsweredQuestions) -> dict[str, float]:
        metric = (SquadV2 if self.version_2_with_negative else SquadV1)(sync_on_compute=False)
        batches: Any = answered.batches() if hasattr(answered, "batches") else [answered]
        for batch in batches:
            metric.update(batch.predictions, batch.label_ids)
        return metric.compute()
