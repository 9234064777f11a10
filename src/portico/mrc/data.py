"""Where a run's examples come from: the embedded corpus, or the user's files."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portico.errors import InputError
from portico.mrc.corpus import generate
from portico.mrc.squad import has_unanswerable, read_squad

logger = logging.getLogger(__name__)

DATA_KEYS = (
    "train_file",
    "validation_file",
    "num_train",
    "num_validation",
    "seed",
    "max_train_samples",
    "max_eval_samples",
    "skip_invalid",
)


@dataclass(frozen=True)
class Examples:
    """The examples of a run.

    Args:
        train: SQuAD records to train on.
        validation: SQuAD records to evaluate on.
    """

    train: list[Mapping[str, Any]]
    validation: list[Mapping[str, Any]]

    @property
    def has_unanswerable(self) -> bool:
        """Whether some question has no answer, in either set."""
        return has_unanswerable(self.train) or has_unanswerable(self.validation)


def load_examples(data: Mapping[str, Any]) -> Examples:
    """Return the examples that the settings name.

    Args:
        data: ``train_file`` and ``validation_file``, both or neither, of which ``skip_invalid`` leaves out unusable
            records; without them ``num_train``, ``num_validation`` and ``seed`` of the embedded corpus.
            ``max_train_samples`` and ``max_eval_samples`` keep the first ones.

    Raises:
        InputError: If only one file is given, or a file cannot be used.
    """
    train_file, validation_file = data.get("train_file"), data.get("validation_file")
    if train_file is None and validation_file is None:
        made = generate(num_train=data["num_train"], num_validation=data["num_validation"], seed=data["seed"])
        train, validation = ([dict(example) for example in part] for part in made)
    elif train_file is None or validation_file is None:
        given, missing = ("train_file", "validation_file") if train_file else ("validation_file", "train_file")
        raise InputError(
            f"`data.{given}={data[given]}` came without `data.{missing}`; set both to SQuAD files, or neither to use "
            "the embedded corpus."
        )
    else:
        skip = data.get("skip_invalid", False)
        train, validation = (read_squad(path, skip_invalid=skip) for path in (train_file, validation_file))
    return Examples(
        train=_first(train, data.get("max_train_samples"), "max_train_samples"),
        validation=_first(validation, data.get("max_eval_samples"), "max_eval_samples"),
    )


def _first(examples: list[Any], limit: int | None, name: str) -> list[Any]:
    if limit is None:
        return examples
    if limit < 1:
        raise InputError(f"`data.{name}={limit}` leaves no example; use an int >= 1, or null for all.")
    return examples[:limit]
