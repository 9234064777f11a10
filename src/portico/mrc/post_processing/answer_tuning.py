"""What the answers to labelled questions teach: the threshold of "no answer" and what scores are worth.

Shape suffixes: E examples, N spans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from portico.errors import InputError
from portico.mrc.answers import AnswerCalibration, Answers
from portico.mrc.answers.calibration import best_null_threshold, fit_calibration
from portico.mrc.metrics import exact_match, token_f1


def with_best_null_threshold(examples: Sequence[Mapping[str, Any]], answers: Answers) -> Answers:
    """Return the answers for the threshold of "no answer" that gives their questions the best F1.

    Args:
        examples: SQuAD records.
        answers: The answers to them.

    Raises:
        InputError: If "no answer" cannot be predicted, or the examples have no gold answers.
    """
    if answers.null_odds is None:
        raise InputError(
            '`null_score_diff_threshold=best` seeks the threshold of "no answer", which cannot be predicted here; set '
            "`version_2_with_negative` to true, or the threshold to a number."
        )
    golds = gold_texts(examples)
    odds_E = np.array([answers.null_odds[example_id] for example_id in golds], np.float64)
    best_texts = answers.best_texts
    answered_E = np.array([token_f1(best_texts[example_id], texts) for example_id, texts in golds.items()])
    not_E = np.array([token_f1("", texts) for texts in golds.values()])
    return answers.at_null_threshold(best_null_threshold(odds_E, answered_E, not_E))


def calibration_of(examples: Sequence[Mapping[str, Any]], answers: Answers) -> AnswerCalibration:
    """Return what turns the scores of such answers into probabilities.

    Args:
        examples: SQuAD records.
        answers: The answers to them.

    Raises:
        InputError: If the examples have no gold answers, or none of the candidates is right.
    """
    golds = gold_texts(examples)
    right = [
        exact_match(candidate.text, golds[example_id]) > 0
        for example_id, candidates in answers.shortlist
        for candidate in candidates
    ]
    calibration = fit_calibration(answers.shortlist.ranked, np.array(right, np.bool_), answers.rows_E)
    can_be_null = answers.null_odds is not None
    return replace(calibration, null_score_diff_threshold=answers.null_threshold if can_be_null else None)


def gold_texts(examples: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the gold answers of every example by its identifier.

    Raises:
        InputError: If an example has none at all, not even an empty list.
    """
    for example in examples:
        if example.get("answers") is None:
            raise InputError(
                f"Example {example['id']!r} has no `answers`, but scores can only be tuned on labelled questions; "
                "give such, with two empty lists for a question without an answer."
            )
    return {example["id"]: list(example["answers"]["text"]) for example in examples}
