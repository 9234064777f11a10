"""Reading the files that a run left behind."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from portico.errors import InputError

# Hugging Face's example names the files of an evaluation and of a prediction so, and those of no stage without prefix.
_PREFIXES = ("eval_", "predict_", "test_", "")
PREDICTIONS = "predictions.json"
NBEST = "nbest_predictions.json"
NULL_ODDS = "null_odds.json"


def answer_prefix(folder: Path) -> str:
    """Return what the names of the answer files of a run begin with.

    Raises:
        InputError: If there is no such folder, or it holds no predictions.
    """
    if not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "no such folder"
        raise InputError(
            f"{folder}: {what}; name the folder of a run, the one that holds its {_PREFIXES[0]}{PREDICTIONS}."
        )
    for prefix in _PREFIXES:
        if (folder / f"{prefix}{PREDICTIONS}").is_file():
            return prefix
    raise InputError(
        f"{folder}: not the folder of a finished run, as it holds no {_PREFIXES[0]}{PREDICTIONS}; name one in "
        "which an evaluation has ended."
    )


def read_mapping(path: Path) -> dict[str, Any]:
    """Return what a JSON or YAML file holds; nothing if there is no such file.

    Raises:
        InputError: If it cannot be read, or holds no mapping.
    """
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        value = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(
            f"{path}: cannot be read ({' '.join(str(error).split())}); restore the file, or remove it to do without."
        ) from error
    if not isinstance(value, Mapping):
        raise InputError(
            f"{path}: holds {type(value).__name__}, not names with their values; give a file as the post-processing "
            "of SQuAD or Hugging Face writes it, answers by question id."
        )
    return dict(value)
