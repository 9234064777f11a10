"""Answers beside their references, as metrics take them and runs write them."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import EvalPrediction

from portico.errors import InputError
from portico.mrc.answers import Answers
from portico.mrc.post_processing.answer_tuning import calibration_of

logger = logging.getLogger(__name__)


class AnsweredQuestions(EvalPrediction):
    """Answers beside their references, as ``compute_metrics`` takes them.

    Args:
        examples: SQuAD records.
        answers: The answers to them.
        calibrate: Whether :meth:`write` also writes what turns scores into probabilities.

    Attributes:
        predictions: ``{"id", "prediction_text"}`` of each question, with ``"no_answer_probability"`` for SQuAD 2.0.
        label_ids: ``{"id", "answers"}`` of each question; ``None`` for questions without labels.
        answers: The answers with their spans, candidates and null odds.
    """

    def __init__(self, examples: Sequence[Mapping[str, Any]], answers: Answers, *, calibrate: bool = False) -> None:
        self.answers = answers
        self._examples, self._calibrate = examples, calibrate
        is_labelled = all("answers" in example for example in examples)
        references = [{"id": example["id"], "answers": example["answers"]} for example in examples if is_labelled]
        super().__init__(
            predictions=_formatted(answers),  # type: ignore[arg-type]
            label_ids=references if is_labelled else None,  # type: ignore[arg-type]
        )

    def write(self, folder: str | Path, prefix: str) -> None:
        """Write predictions, n-best lists and null odds into ``folder``; file names begin with ``prefix``."""
        self.answers.write(folder, prefix)
        if self._calibrate:
            try:
                calibration_of(self._examples, self.answers).save(folder)
            except InputError as error:
                # A reader may find nothing at the beginning of its training.
                logger.warning("The answers are not calibrated. %s", error)


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
