"""Flags, numbers and answers of records in the forms that circulate: of JSON, CSV, numpy and pandas.

Every function raises ``InvalidRecord`` for a value that it cannot read, which names the field.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from portico.data.defects import InvalidRecord, describe

_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "": None}
_DEEPEST = 50  # records are nested less than this
ANSWER_FORMS = (
    '{"text": [...], "answer_start": [...]} with two lists of the same length or a list of {"text", "answer_start"}, '
    "empty for a question without an answer"
)


def as_json(value: Any, depth: int = 0) -> Any:
    """Return a value of Python, numpy or pandas as JSON has it: a list, object, string, number, boolean or null."""
    if value is None or type(value) in (str, int, bool) or depth > _DEEPEST:
        return value
    if isinstance(value, Mapping):
        return {key: as_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item, depth + 1) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)  # pandas marks missing values so
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        # A number, an array, or a tensor or a series of some library.
        return as_json(np.asarray(value).tolist(), depth + 1)
    return value


def check_flag(key: str, value: object) -> bool | None:
    """Return a flag: a boolean, 1 or 0, or one of these in words; ``None`` if it is missing."""
    value = as_json(value)
    if value is None or isinstance(value, bool):
        return value
    word = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip().lower()
    if word not in _FLAGS or not isinstance(value, int | float | str):
        raise InvalidRecord(f"`{key}` must be true or false; got {describe(value)}.")
    return _FLAGS[word]


def parse_int(value: object) -> object:
    """Return an integer that is given as a whole float, as numpy has it or in digits; anything else unchanged."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) < 20:
        return int(value)
    return value


def answer_columns(answers: object) -> tuple[list[Any], list[Any]]:
    """Return the texts and the starts of answers, which are not yet validated.

    They are given as SQuAD's object of two lists, or of one text and one start; as a list of objects with ``text`` and
    ``answer_start``; or as ``None``. A text that is missing or empty at -1 is no answer, and is left out.
    """
    answers = as_json(answers)
    texts: Any = None
    starts: Any = None
    if answers is None:
        texts, starts = [], []
    elif isinstance(answers, list) and all(isinstance(answer, Mapping) for answer in answers):
        texts, starts = ([answer.get(key) for answer in answers] for key in ("text", "answer_start"))
    elif isinstance(answers, Mapping) and "text" in answers:
        texts, starts = answers["text"], answers.get("answer_start")
        if not isinstance(texts, list) and not isinstance(starts, list):
            texts, starts = [texts], [starts]
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise InvalidRecord(f"`answers` must be {ANSWER_FORMS}; got {describe(answers)}.")
    starts = [parse_int(start) for start in starts]
    kept = [
        (text, start)
        for text, start in zip(texts, starts, strict=True)
        if not (text in (None, "") and start in (None, -1))
    ]
    return [text for text, _ in kept], [start for _, start in kept]


def texts_of(answers: object) -> list[str]:
    """Return the texts of answers in any form of :func:`answer_columns`, also without starts, as a list or as one."""
    answers = as_json(answers)
    if isinstance(answers, Mapping):
        if "text" not in answers:
            raise InvalidRecord(f"`answers` must have `text`; got {describe(answers)}.")
        texts, starts = answers["text"], answers.get("answer_start")
        listed = texts if isinstance(texts, list) else [texts]
        starts = starts if isinstance(starts, list) and len(starts) == len(listed) else [starts] * len(listed)
        answers = [{"text": text, "answer_start": start} for text, start in zip(listed, starts, strict=True)]
    texts = []
    for answer in answers if isinstance(answers, list) else [answers]:
        if isinstance(answer, Mapping):
            if "text" not in answer:
                raise InvalidRecord(f"`answers` must have `text`; got {describe(answer)}.")
            is_none = answer["text"] is None or (answer["text"] == "" and parse_int(answer.get("answer_start")) == -1)
            answer = None if is_none else answer["text"]
        if answer is not None:
            texts.append(answer_text("answers", answer))
    return texts


def answer_text(key: str, value: object) -> str:
    """Return the text of an answer, a string or a number; ``None`` is no answer, ``""``."""
    value = as_json(value)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidRecord(f"`{key}` must be a string; got {describe(value)}.")
    return str(value)
