"""Calibrated probabilities and the best threshold of "no answer", fitted on labelled questions.

Shape suffixes: E examples, N spans.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from portico.errors import InputError
from portico.mrc.arrays import Bools, Floats, Int64s
from portico.mrc.datasets.examples import Examples, answer_texts
from portico.mrc.metrics import exact_match, token_f1
from portico.mrc.postprocess.answers import Answers
from portico.mrc.postprocess.ranking import RankedSpans, span_probabilities
from portico.trust.disk import read_text, write_text

Float64s = npt.NDArray[np.float64]

FILE_NAME = "answer_calibration.json"
"""Name of the file in the folder of a model."""

_TEMPERATURES = (0.05, 20.0)
_TINY = 1e-12


@dataclass(frozen=True)
class AnswerCalibration:
    """Maps the scores of an example's spans to the probability that its answer is right.

    Args:
        temperature: Divisor of the scores before the softmax.
        slope: Factor of the log-odds of the softmax.
        intercept: Added to the scaled log-odds.
        null_score_diff_threshold: The threshold of "no answer"; ``None`` if "no answer" could not be predicted.

    Source: temperature scaling, arXiv:1706.04599; sigmoid of the log-odds, Platt 1999.
    """

    temperature: float = 1.0
    slope: float = 1.0
    intercept: float = 0.0
    null_score_diff_threshold: float | None = None

    def calibrated(self, probability_N: Float64s) -> Float64s:
        """Return the probabilities that spans with these softmax values are right."""
        if self.slope == 1 and self.intercept == 0:
            return probability_N
        return sigmoid(self.slope * _log_odds(probability_N) + self.intercept)

    def _check(self) -> None:
        for name, value in asdict(self).items():
            is_threshold = name == "null_score_diff_threshold"
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            # A threshold may be infinite: every question is answered, or none.
            is_usable = is_number and (value == value if is_threshold else abs(value) <= sys.float_info.max)
            if not is_usable and not (is_threshold and value is None):
                raise ValueError(f"`{name}` is {str(value)[:50]!r}, not a number")
        if self.temperature <= 0:
            raise ValueError(f"`temperature` is {self.temperature}, not above 0")

    def save(self, folder: str | Path) -> None:
        """Write the calibration into the folder of its model."""
        write_text(Path(folder, FILE_NAME), json.dumps(asdict(self), indent=4) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> "AnswerCalibration | None":
        """Read the calibration from the folder of a model; ``None`` if there is none.

        Raises:
            InputError: If the file does not hold a calibration.
        """
        path = Path(folder, FILE_NAME)
        if not path.is_file():
            return None
        try:
            loaded = cls(**json.loads(read_text(path)))
            loaded._check()
            return loaded
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"{path} is not a valid answer calibration ({error}); delete it, or calibrate the reader again."
            ) from error


def calibrate_probabilities(answers: Answers, calibration: AnswerCalibration) -> Float64s:
    """Return the probability that each candidate is right, ``float64 [N]``; they add up to at most 1 per example.

    The calibration is fitted to answers, so an answer keeps its probability, and the other candidates share at most
    the remainder. What is then left is the probability that no candidate is right.
    """
    ranked = answers.shortlist.ranked
    rows_E = answers.rows_E
    probability_N = calibration.calibrated(span_probabilities(ranked, temperature=calibration.temperature))
    answer_E = np.append(probability_N, 0.0)[rows_E]  # -1, no candidate, takes the appended one
    others_E = np.bincount(ranked.example_N, probability_N, minlength=len(rows_E)) - answer_E
    share_E = np.minimum(1.0, (1 - answer_E) / np.maximum(others_E, _TINY))
    shared_N: Float64s = probability_N * share_E[ranked.example_N]
    shared_N[rows_E[rows_E >= 0]] = answer_E[rows_E >= 0]
    return shared_N


def calibration_of(examples: Examples, answers: Answers) -> AnswerCalibration:
    """Fit a calibration to the answers to labelled questions (SQuAD records).

    Raises:
        InputError: If a question has no gold answers, or none of the candidates is right.
    """
    golds = _gold_texts(examples)
    right = [
        exact_match(text, golds[example_id]) > 0
        for example_id, rows in answers.shortlist.rows()
        for text in answers.shortlist.texts(rows)
    ]
    calibration = fit_calibration(answers.shortlist.ranked, np.array(right, np.bool_), answers.rows_E)
    can_be_null = answers.null_odds is not None
    return replace(calibration, null_score_diff_threshold=answers.null_threshold if can_be_null else None)


def use_best_null_threshold(examples: Examples, answers: Answers) -> Answers:
    """Return the answers for the threshold of "no answer" that gives these questions the best F1.

    Raises:
        InputError: If "no answer" cannot be predicted, or a question has no gold answers.
    """
    if answers.null_odds is None:
        raise InputError(
            '`null_score_diff_threshold=best` needs scores of "no answer", but it cannot be predicted here; set '
            "`version_2_with_negative` to true, or the threshold to a number."
        )
    golds = _gold_texts(examples)
    odds_E = np.array([answers.null_odds[example_id] for example_id in golds], np.float64)
    best_texts = answers.best_texts
    answered_E = np.array([token_f1(best_texts[example_id], texts) for example_id, texts in golds.items()])
    not_E = np.array([token_f1("", texts) for texts in golds.values()])
    return answers.at_null_threshold(best_null_threshold(odds_E, answered_E, not_E))


def _gold_texts(examples: Examples) -> dict[str, list[str]]:
    for example in examples:
        if example.get("answers") is None:
            raise InputError(
                f"Example {example['id']!r} has no `answers`, but scores can only be tuned on labelled questions; add "
                "`answers` to all examples, with two empty lists for a question that has none."
            )
    return {example["id"]: answer_texts(example) for example in examples}


def fit_calibration(ranked: RankedSpans, right_N: Bools, answer_E: Int64s) -> AnswerCalibration:
    """Fit a calibration to the spans of labelled examples, including "no answer" where it can be predicted.

    ``right_N`` says which of them are right, ``answer_E`` which of them answers each example, -1 for none.
    """
    right_E = np.bincount(ranked.example_N, right_N, minlength=len(ranked.counts_E)) > 0
    if not right_E.any():
        raise InputError(
            "None of the candidates of any question is right, so there is nothing to calibrate on; give labelled "
            "questions of which the reader answers some."
        )

    in_float64_E = np.ones(len(right_E), np.bool_)

    def loss(log_temperature: float) -> float:
        softmax_N = span_probabilities(ranked, in_float64_E, np.exp(log_temperature))
        mass_E = np.bincount(ranked.example_N, softmax_N * right_N, minlength=len(right_E))
        return float(-np.log(np.maximum(mass_E[right_E], _TINY)).mean())

    # The temperature that makes the right spans most likely, by golden-section search over its logarithm.
    low, high = np.log(_TEMPERATURES)
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    temperature = float(np.exp((low + high) / 2))
    answers = answer_E[answer_E >= 0]
    softmax_N = span_probabilities(ranked, in_float64_E, temperature)
    slope, intercept = _fit_line(_log_odds(softmax_N[answers]), right_N[answers])
    return AnswerCalibration(temperature, slope, intercept)


def best_null_threshold(null_odds_E: Float64s, if_answered_E: Floats, if_not_E: Floats) -> float:
    """Return the threshold of "no answer" with the best mean score.

    ``null_odds_E`` is the score of "no answer" minus the score of the best span; the others are scores (such as F1) of
    each example if its best span or "no answer" is predicted.
    """
    order = np.argsort(null_odds_E, kind="stable")
    odds_E = null_odds_E[order]
    gain_E = np.cumsum(if_answered_E[order] - if_not_E[order])
    # Examples with equal odds fall on the same side.
    last = np.flatnonzero(np.diff(odds_E, append=np.inf) > 0)
    gains = np.concatenate([[0.0], gain_E[last]])
    odds = np.concatenate([[odds_E[0] - 2], odds_E[last], [odds_E[-1] + 2]])
    best = int(gains.argmax())
    return float((odds[best] + odds[best + 1]) / 2)


def _fit_line(log_odds_E: Float64s, right_E: Bools) -> tuple[float, float]:
    """Return slope and intercept of a logistic regression, by Newton's method with step halving.

    The targets are moved slightly inwards, as in Platt's method, and the slope is regularised towards 1, which keeps
    the line finite where the classes do not overlap or all scores are equal.
    """
    num_right = int(right_E.sum())
    target_E = np.where(right_E, (num_right + 1) / (num_right + 2), 1 / (len(right_E) - num_right + 2))
    inputs_E2 = np.stack([log_odds_E, np.ones_like(log_odds_E)], axis=1)
    prior_2, weight_2 = np.array([1.0, 0.0]), np.array([1.0, 1e-6])

    def loss(line_2: Float64s) -> float:
        odds_E = inputs_E2 @ line_2
        # log(1 + exp(odds)) - target * odds, for odds of any size
        return float(
            (np.logaddexp(0, odds_E) - target_E * odds_E).sum() + (weight_2 * (line_2 - prior_2) ** 2).sum() / 2
        )

    line_2 = prior_2
    for _ in range(50):
        guess_E = sigmoid(inputs_E2 @ line_2)
        gradient_2 = inputs_E2.T @ (guess_E - target_E) + weight_2 * (line_2 - prior_2)
        curvature_22 = (inputs_E2.T * (guess_E * (1 - guess_E))) @ inputs_E2 + np.diag(weight_2)
        step_2 = np.linalg.solve(curvature_22, gradient_2)
        while loss(line_2 - step_2) > loss(line_2) and np.abs(step_2).max() > _TINY:
            step_2 = step_2 / 2
        line_2 = line_2 - step_2
    return float(line_2[0]), float(line_2[1])


def _log_odds(probability_N: Float64s) -> Float64s:
    clipped_N = np.clip(probability_N, _TINY, 1 - _TINY)
    return np.log(clipped_N) - np.log1p(-clipped_N)


def sigmoid(odds: Float64s | float) -> Float64s:
    return 0.5 + 0.5 * np.tanh(0.5 * odds)  # tanh does not overflow, whatever the odds
