"""Texts made comparable: SQuAD's normalisation, and MLQA's for other languages than English."""

import re
import string
import unicodedata
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from portico.errors import InputError

Normalize: TypeAlias = Callable[[str], str]

_ENGLISH_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_HAN = re.compile("[\u4e00-\u9fa5]")

# The languages of MLQA and XQuAD. MLQA's script defines those from "en" to "zh"; the others are XQuAD's, whose
# articles, where they have any, no script removes.
_ARTICLES: dict[str, re.Pattern[str] | None] = {
    "en": _ENGLISH_ARTICLES,
    "es": re.compile(r"\b(un|una|unos|unas|el|la|los|las)\b"),
    "hi": None,
    "vi": re.compile("\\b(c\u1ee7a|l\u00e0|c\u00e1i|chi\u1ebfc|nh\u1eefng)\\b"),
    "de": re.compile(r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b"),
    "ar": re.compile("\u0627\u0644"),  # written together with its noun, and removed inside words as well
    "zh": None,
    "el": None,
    "ro": None,
    "ru": None,
    "th": None,
    "tr": None,
}


def normalize_answer(text: str) -> str:
    """Return the text in lower case without ASCII punctuation, English articles and extra blanks.

    Source: SQuAD, arXiv:1606.05250, section 6.1.
    """
    return " ".join(_ENGLISH_ARTICLES.sub(" ", text.lower().translate(_NO_ASCII_PUNCTUATION)).split())


def normalization(language: str | None) -> Normalize:
    """Return MLQA's normalisation for a language: its articles, all of Unicode's punctuation.

    Chinese characters become words of their own.

    Args:
        language: Two letters, such as ``"de"``.

    Raises:
        InputError: If the language is neither MLQA's nor XQuAD's.
    Source: the official evaluation script of MLQA, arXiv:1910.07475.
    """
    if language not in _ARTICLES:
        raise InputError(
            f"`language={language!r}` is not a language of MLQA or XQuAD; set it to one of {', '.join(_ARTICLES)}, or "
            "score other languages by the rules of SQuAD (`metric=squad`)."
        )
    return partial(_normalize_in, language=language)


def _normalize_in(text: str, language: str) -> str:
    articles = _ARTICLES[language]
    text = "".join(char for char in text.lower() if not _is_punctuation(char))
    if articles is not None:
        text = articles.sub(" ", text)
    if language == "zh":
        text = _HAN.sub(r" \g<0> ", text)
    return " ".join(text.split())


def _is_punctuation(char: str) -> bool:
    return char in string.punctuation or unicodedata.category(char).startswith("P")
