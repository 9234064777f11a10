"""ROUGE of generated answers: Google's types by the package ``rouge-score``, and KILT's ROUGE-L, which differs.

torchmetrics' ``ROUGEScore`` is not used: it averages in ``float32``, and ``rougeLsum`` always splits with NLTK's data,
which it downloads.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torchmetrics import Metric

from portico.errors import InputError, MissingPackageError
from portico.mrc.metrics.squad import (
    Predictions,
    Records,
    build_empty_error,
    check_answered,
    gold_texts,
    prediction_records,
    read_answer,
)
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

KILT_ROUGE_L = "kilt_rougeL"
_GOOGLE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_TYPES = (*_GOOGLE_TYPES, KILT_ROUGE_L)
# KILT's denominator has it, so scores are a little below the plain F1.
_KILT_EPSILON = 1e-8


@data_only
class Rouge(Metric):
    """ROUGE F1 of generated answers against the best of the gold answers, averaged over the questions.

    ``compute`` returns each type in 0..100, and ``gen_len``, the mean number of spaces in a prediction.

    Args:
        rouge_types: Google's ``rouge1``, ``rouge2``, ``rougeL`` and ``rougeLsum``, where line breaks end sentences;
            and ``kilt_rougeL``, KILT's.
        use_stemmer: Whether Google's types compare the stems of English words.
        split_sentences: Splits texts into sentences for ``rougeLsum``; by default only at line breaks.
        **kwargs: As in ``torchmetrics.Metric``.

    Raises:
        InputError: If a type is not one of these.
        MissingPackageError: If ``rouge_types`` has one of Google's and ``rouge-score`` is not installed.
    """

    full_state_update = False
    higher_is_better = True
    sums: torch.Tensor

    def __init__(
        self,
        rouge_types: Sequence[str] = _TYPES,
        *,
        use_stemmer: bool = True,
        split_sentences: Callable[[str], Sequence[str]] | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(rouge_types, str) or not rouge_types or any(name not in _TYPES for name in rouge_types):
            raise InputError(
                f"Invalid `rouge_types={rouge_types!r}`; expected a list with any of {', '.join(_TYPES)}."
            )
        self.rouge_types = tuple(rouge_types)
        self.split_sentences = split_sentences
        google_types = [name for name in rouge_types if name in _GOOGLE_TYPES]
        self._google: Any = None
        if google_types:
            try:
                from rouge_score.rouge_scorer import RougeScorer
            except ImportError as error:
                raise MissingPackageError(
                    f"rouge-score, which computes {', '.join(google_types)}, is not installed; install it with "
                    f"`pip install 'portico[rouge]'`, or set `rouge_types=[{KILT_ROUGE_L}]`, which needs no package."
                ) from error
            self._google = RougeScorer(google_types, use_stemmer=use_stemmer)
        # A sum for each type, the spaces in all predictions, the number of questions.
        self.add_state("sums", torch.zeros(len(rouge_types) + 2, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Predictions, references: Records) -> None:
        """Add a batch in the form of ``AnswerTexts.update``.

        Raises:
            InputError: If a question has no prediction or no gold answer.
        """
        predictions = prediction_records(predictions)
        check_answered(predictions, references)
        texts = {prediction["id"]: read_answer(prediction) for prediction in predictions}
        sums = self.sums.tolist()
        for reference in references:
            text = texts[reference["id"]]
            golds = gold_texts(reference)
            if not golds:
                raise InputError(f"Question {reference['id']!r} has no gold answer; leave it out of the evaluation.")
            row = [*self._best_scores(text, golds), text.count(" "), 1]
            sums = [total + number for total, number in zip(sums, row, strict=True)]
        self.sums = self.sums.new_tensor(sums)

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far, at least one question."""
        *sums, num_spaces, total = self.sums.tolist()
        if total == 0:
            raise build_empty_error()
        scores = {name: 100.0 * score / total for name, score in zip(self.rouge_types, sums, strict=True)}
        return {**scores, "gen_len": num_spaces / total}

    def _best_scores(self, text: str, golds: Sequence[str]) -> list[float]:
        google = []
        if self._google is not None:
            lines = self._lines(text)
            google = [self._google.score(self._lines(gold), lines) for gold in golds]
        return [
            max(kilt_rouge_l(text, gold) for gold in golds)
            if name == KILT_ROUGE_L
            else max(scores[name].fmeasure for scores in google)
            for name in self.rouge_types
        ]

    def _lines(self, text: str) -> str:
        return text if self.split_sentences is None else "\n".join(self.split_sentences(text))


def kilt_rouge_l(prediction: str, gold: str) -> float:
    """Return KILT's ROUGE-L in 0..1: the F1 of the words in the longest common subsequences of sentences.

    KILT uses the package ``rouge`` as it is: sentences end at full stops, words are separated by whitespace and
    compared with their case, and a word counts once however often it occurs. A text without words scores 0.

    Source: KILT, arXiv:2009.02252; ROUGE-L of summaries, Lin 2004, section 3.2.
    """
    sentences, gold_sentences = _kilt_sentences(prediction), _kilt_sentences(gold)
    if not sentences or not gold_sentences:
        return 0.0
    shared: set[str] = set()
    for gold_sentence in gold_sentences:
        for sentence in sentences:
            shared.update(_longest_common_subsequence(gold_sentence, sentence))
    precision = len(shared) / len({word for sentence in sentences for word in sentence})
    recall = len(shared) / len({word for sentence in gold_sentences for word in sentence})
    return 2.0 * ((precision * recall) / (precision + recall + _KILT_EPSILON))


def _kilt_sentences(text: str) -> list[list[str]]:
    # As in the package, a sentence of spaces consists of one empty word: hence split(" "), which str.split() is not.
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _longest_common_subsequence(x: Sequence[str], y: Sequence[str]) -> list[str]:
    """Return the longest common subsequence; of several, the one that the package finds, from the end."""
    lengths = [[0] * (len(y) + 1) for _ in range(len(x) + 1)]
    for i, x_word in enumerate(x, start=1):
        above = lengths[i - 1]
        row = lengths[i]
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
