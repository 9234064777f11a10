"""Predictions and references as SQuAD's metrics take them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from portico.errors import InputError

Record: TypeAlias = Mapping[str, Any]
Records: TypeAlias = Sequence[Record]


def gold_texts(reference: Record) -> list[str]:
    """Return the texts of ``reference["answers"]``: SQuAD's ``{"text": [...]}``, or MRQA's list of texts."""
    answers = reference["answers"]
    return list(answers["text"] if isinstance(answers, Mapping) else answers)


def unanswered(predictions: Records, references: Records) -> list[Any]:
    """Return the ids of the references that have no prediction, in their order."""
    answered = {prediction["id"] for prediction in predictions}
    return [reference["id"] for reference in references if reference["id"] not in answered]


def check_complete(predictions: Records, references: Records) -> None:
    """Refuse references without prediction.

    Raises:
        InputError: Says how many there are and names one.
    """
    missing = unanswered(predictions, references)
    if missing:
        raise InputError(
            f"{len(missing)} of {len(references)} references have no prediction, {min(missing)!r} for one; predict an "
            f"answer to every question, an empty text for no answer."
        )
