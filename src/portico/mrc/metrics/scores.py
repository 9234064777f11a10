"""Exact match and F1 of one answer, by the rules of SQuAD."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return the text in lower case without ASCII punctuation, English articles and extra blanks.

    Source: SQuAD, arXiv:1606.05250, section 6.1.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1 if the prediction equals one of the gold answers after normalisation, otherwise 0.

    Args:
        prediction: The predicted text, ``""`` for "no answer".
        golds: The gold answers. None of them, or only such that nothing is left of, means that the question has no
            answer.
    """
    normalized = normalize_answer(prediction)
    return float(any(normalized == gold for gold in _normalized(golds)))


def token_f1(prediction: str, golds: Sequence[str]) -> float:
    """Return the best F1 in 0..1 of the prediction's words against those of a gold answer, order ignored.

    For a question without an answer it is 1 if the prediction is empty too, otherwise 0.

    Args:
        prediction: As in `exact_match`.
        golds: As in `exact_match`.
    """
    words = normalize_answer(prediction).split()
    return max(_word_f1(words, gold.split()) for gold in _normalized(golds))


def _normalized(golds: Sequence[str]) -> list[str]:
    return [gold for gold in map(normalize_answer, golds) if gold] or [""]


def _word_f1(words: list[str], gold_words: list[str]) -> float:
    if not words or not gold_words:
        return float(words == gold_words)
    num_shared = (Counter(words) & Counter(gold_words)).total()
    if num_shared == 0:
        return 0.0
    precision, recall = num_shared / len(words), num_shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)
