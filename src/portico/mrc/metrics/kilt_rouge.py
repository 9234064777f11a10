"""ROUGE-L as the KILT benchmark counts it, which is not how Google's ROUGE does.

KILT takes the package ``rouge`` as it comes: sentences end at full stops, words are what blanks separate, in the case
they are in, and a word counts once however often it occurs.
"""

from collections.abc import Sequence

_NO_DIVISION_BY_ZERO = 1e-8


def kilt_rouge_l(prediction: str, gold: str) -> float:
    """Return the F1 in 0..1 of the words that keep their order; 0 where a text has none.

    Args:
        prediction: The predicted text.
        gold: A gold answer.

    Source: KILT, arXiv:2009.02252; ROUGE-L of summaries, Lin 2004, section 3.2.
    """
    sentences, gold_sentences = _sentences(prediction), _sentences(gold)
    if not sentences or not gold_sentences:
        return 0.0
    shared: set[str] = set()
    for gold_sentence in gold_sentences:
        for sentence in sentences:
            shared.update(_longest_common_subsequence(gold_sentence, sentence))
    precision = len(shared) / len({word for sentence in sentences for word in sentence})
    recall = len(shared) / len({word for sentence in gold_sentences for word in sentence})
    return 2.0 * ((precision * recall) / (precision + recall + _NO_DIVISION_BY_ZERO))


def _sentences(text: str) -> list[list[str]]:
    # A sentence of blanks has one empty word.
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _longest_common_subsequence(x: Sequence[str], y: Sequence[str]) -> list[str]:
    """Return the one of the longest that is found from the end, a step in ``y`` before one in ``x``."""
    lengths = [[0] * (len(y) + 1) for _ in range(len(x) + 1)]
    for i, x_word in enumerate(x, start=1):
        above, row = lengths[i - 1], lengths[i]
        for j, y_word in enumerate(y, start=1):
            row[j] = above[j - 1] + 1 if x_word == y_word else max(above[j], row[j - 1])
    words = []
    i, j = len(x), len(y)
    while i and j:
        if x[i - 1] == y[j - 1]:
            words.append(x[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words
