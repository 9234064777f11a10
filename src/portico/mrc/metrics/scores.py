"""Exact match and F1 of one answer's text, and the normalisations that make texts comparable.

SQuAD 2.0 treats an answer that normalises to nothing as "no answer"; SQuAD 1.1 does not, and gives it an F1 of 0.
Importing this module does not import torch.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import TypeAlias

from portico.errors import InputError

Normalize: TypeAlias = Callable[[str], str]

_ARTICLE_WORDS = frozenset(("a", "an", "the"))
_ENGLISH_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]+")
_NO_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_HAN = re.compile("[\u4e00-\u9fa5]")

# The languages of MLQA and XQuAD. The articles of "en" to "zh" come from MLQA's script; for the other languages, which
# only XQuAD has, no official script removes articles.
_ARTICLES: dict[str, re.Pattern[str] | None] = {
    "en": _ENGLISH_ARTICLES,
    "es": re.compile(r"\b(un|una|unos|unas|el|la|los|las)\b"),
    "hi": None,
    "vi": re.compile("\\b(c\u1ee7a|l\u00e0|c\u00e1i|chi\u1ebfc|nh\u1eefng)\\b"),
    "de": re.compile(r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b"),
    "ar": re.compile("\u0627\u0644"),  # a prefix of its noun; the script removes it inside words as well
    "zh": None,
    **dict.fromkeys(("el", "ro", "ru", "th", "tr")),
}


_LANGUAGE_NAMES = {
    **{"english": "en", "spanish": "es", "hindi": "hi", "vietnamese": "vi", "german": "de", "arabic": "ar"},
    **{"chinese": "zh", "greek": "el", "romanian": "ro", "russian": "ru", "thai": "th", "turkish": "tr"},
}


# Every evaluation normalises the same gold answers, and questions list them several times.
@lru_cache(maxsize=2**14)
def normalize_answer(text: str) -> str:
    """Return the text in lower case without ASCII punctuation, English articles and extra whitespace.

    Source: SQuAD, arXiv:1606.05250, section 6.1.
    """
    bare = text.lower()
    if bare.isascii() and bare.isprintable():
        # A printable ASCII text then has only letters, digits and spaces. Splitting it takes a fifth of the time.
        if not bare.replace(" ", "").isalnum():
            bare = _ASCII_PUNCTUATION.sub("", bare)
        return " ".join([word for word in bare.split() if word not in _ARTICLE_WORDS])
    return " ".join(_ENGLISH_ARTICLES.sub(" ", bare.translate(_NO_ASCII_PUNCTUATION)).split())


def language_code(language: str) -> str | None:
    """Return the two letters of a language of MLQA or XQuAD, given by them, as ``zh-CN``, or in English."""
    code = re.split("[-_.]", language.strip().lower())[0]
    code = _LANGUAGE_NAMES.get(code, code)
    return code if code in _ARTICLES else None


@cache
def mlqa_normalization(language: str | None) -> Normalize:
    """Return MLQA's normalisation for a language: it removes its articles and all Unicode punctuation.

    Every Chinese character becomes a word.

    Raises:
        InputError: If the language, two letters such as ``"de"``, is neither in MLQA nor in XQuAD.
    Source: the official evaluation script of MLQA, arXiv:1910.07475.
    """
    if language not in _ARTICLES:
        raise InputError(
            f"`language={language!r}` is not a language of MLQA or XQuAD; expected one of {', '.join(_ARTICLES)}, as "
            "`metric.language` or as the `language` of every question. "
            "Score other languages by the rules of SQuAD (`metric=squad`)."
        )
    return partial(_normalize_mlqa, language=language)


def _normalize_mlqa(text: str, language: str) -> str:
    # The order of mlqa_evaluation_v1.py: lower case, punctuation, articles, and white space last. ASCII has marks such
    # as "$" and "+" that Unicode files under symbols.
    kept = [char for char in text.lower() if char not in string.punctuation and unicodedata.category(char)[0] != "P"]
    articles = _ARTICLES[language]
    text = "".join(kept)
    if articles is not None:
        text = articles.sub(" ", text)
    if language == "zh":
        # The script's `mixed_segmentation`: a Chinese character is a token, other text is split at white space.
        text = _HAN.sub(r" \g<0> ", text)
    return " ".join(text.split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1 if the prediction equals one of the gold answers after normalisation, otherwise 0.

    Args:
        prediction: The predicted text, ``""`` for "no answer".
        golds: The gold answers. If there are none, or all normalise to nothing, the question has no answer.
    """
    return exact_and_f1(prediction, golds)[0]


def token_f1(prediction: str, golds: Sequence[str]) -> float:
    """Return the best F1 in 0..1 of the words of the prediction and of a gold answer, ignoring their order.

    Takes the same arguments as ``exact_match``. A question without an answer scores 1 for an empty prediction and 0
    for any other.
    """
    return exact_and_f1(prediction, golds)[1]


def exact_and_f1(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return what ``exact_match`` and ``token_f1`` return."""
    normalized = normalize_answer(prediction)
    # As evaluate-v2.0.py: gold answers of which nothing is left are dropped, and the only gold answer left is "".
    normalized_golds = {gold for gold in map(normalize_answer, golds) if gold} or {""}
    if normalized in normalized_golds:
        return 1.0, 1.0
    if not normalized or "" in normalized_golds:
        return 0.0, 0.0
    words = normalized.split()
    return 0.0, max(_word_f1(words, gold.split()) for gold in normalized_golds)


def text_scores(prediction: str, golds: Sequence[str], normalize: Normalize) -> tuple[float, float]:
    """Return the best exact match, 0 or 1, and the best F1 in 0..1 by the rules of SQuAD 1.1; golds are not empty."""
    normalized = normalize(prediction)
    normalized_golds = [normalize(gold) for gold in golds]
    words = normalized.split()
    return float(normalized in normalized_golds), max(_word_f1(words, gold.split()) for gold in normalized_golds)


def overlap_f1(num_shared: int, num_predicted: int, num_gold: int) -> float:
    """Return F1, in 0..1, from the numbers of shared, predicted and gold words (or characters)."""
    if num_shared <= 0:
        return 0.0
    precision, recall = num_shared / num_predicted, num_shared / num_gold
    return 2 * precision * recall / (precision + recall)


def _word_f1(words: list[str], gold_words: list[str]) -> float:
    if words == gold_words:
        return float(bool(words))
    different = set(words)
    shared = different.intersection(gold_words)
    num_shared = len(shared)
    if shared and len(different) < len(words):
        num_shared = (Counter(words) & Counter(gold_words)).total()
    return overlap_f1(num_shared, len(words), len(gold_words))
