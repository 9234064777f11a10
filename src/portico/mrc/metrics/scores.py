"""Exact match and F1 of one answer.

SQuAD 2.0 counts an answer of which normalisation leaves nothing as "no answer"; SQuAD 1.1 knows no such thing and
finds no word in common with it.
"""

from collections import Counter
from collections.abc import Sequence

from portico.mrc.metrics.normalization import Normalize, normalize_answer

__all__ = ["exact_match", "normalize_answer", "text_scores", "token_f1"]


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
    return max(_agreement(words, gold.split()) for gold in _normalized(golds))


def text_scores(prediction: str, golds: Sequence[str], normalize: Normalize) -> tuple[float, float]:
    """Return the best exact match, 0 or 1, and the best F1 in 0..1 by the rules of SQuAD 1.1.

    Args:
        prediction: The predicted text.
        golds: The gold answers, at least one.
        normalize: Makes texts comparable.
    """
    normalized = normalize(prediction)
    normalized_golds = [normalize(gold) for gold in golds]
    words = normalized.split()
    return float(normalized in normalized_golds), max(_word_f1(words, gold.split()) for gold in normalized_golds)


def _normalized(golds: Sequence[str]) -> list[str]:
    return [gold for gold in map(normalize_answer, golds) if gold] or [""]


def _agreement(words: list[str], gold_words: list[str]) -> float:
    return _word_f1(words, gold_words) if words and gold_words else float(words == gold_words)


def _word_f1(words: list[str], gold_words: list[str]) -> float:
    num_shared = (Counter(words) & Counter(gold_words)).total()
    if num_shared == 0:
        return 0.0
    precision, recall = num_shared / len(words), num_shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)
