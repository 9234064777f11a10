"""ROUGE of generated answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torchmetrics import Metric

from portico.errors import InputError, MissingPackageError
from portico.mrc.metrics.kilt_rouge import kilt_rouge_l
from portico.mrc.metrics.records import Records, check_complete, gold_texts

KILT_ROUGE_L = "kilt_rougeL"
_GOOGLE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")

Scorer = Callable[[str, str], Mapping[str, float]]


class Rouge(Metric):
    """ROUGE's F1 of generated answers against the best of the gold answers, averaged over the questions.

    ``compute`` gives each type in 0..100, and ``gen_len``, the mean number of blanks in a prediction.

    Args:
        rouge_types: Google's ``rouge1``, ``rouge2``, ``rougeL`` and ``rougeLsum``, where line breaks end sentences;
            and ``kilt_rougeL``, KILT's.
        use_stemmer: Whether Google's types compare the stems of English words.
        split_sentences: Splits texts into sentences for ``rougeLsum``; by default at line breaks alone.
        **kwargs: As in ``torchmetrics.Metric``.

    Raises:
        InputError: If a type is not one of these.
        MissingPackageError: If Google's types are asked for and ``rouge-score`` is not installed.
    """

    full_state_update = False
    higher_is_better = True
    sums: torch.Tensor

    def __init__(
        self,
        rouge_types: Sequence[str] = (*_GOOGLE_TYPES, KILT_ROUGE_L),
        *,
        use_stemmer: bool = True,
        split_sentences: Callable[[str], Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_types(rouge_types)
        self.rouge_types = tuple(rouge_types)
        self.split_sentences = split_sentences
        google_types = [name for name in rouge_types if name in _GOOGLE_TYPES]
        self._google = _google_scorer(google_types, use_stemmer) if google_types else None
        # A sum for each type, the blanks in all predictions, the number of questions.
        self.add_state("sums", torch.zeros(len(rouge_types) + 2, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Records, references: Records) -> None:
        """Add a batch.

        Args:
            predictions: ``{"id", "prediction_text"}``.
            references: ``{"id", "answers": {"text": [...]}}``, or a list of texts as ``answers``; one at least.

        Raises:
            InputError: If a question has no prediction or no gold answer.
        """
        check_complete(predictions, references)
        texts = {prediction["id"]: prediction["prediction_text"] for prediction in predictions}
        sums = self.sums.tolist()
        for reference in references:
            text, golds = texts[reference["id"]], gold_texts(reference)
            if not golds:
                raise InputError(
                    f"Question {reference['id']!r} has no gold answer to compare with; leave it out of the evaluation."
                )
            row = [*self._best_scores(text, golds), text.count(" "), 1]
            sums = [total + number for total, number in zip(sums, row, strict=True)]
        self.sums = self.sums.new_tensor(sums)

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far, at least one question."""
        *sums, num_blanks, total = self.sums.tolist()
        if total == 0:
            raise InputError("No question was scored; give predictions and references before the metrics are asked.")
        scores = {name: 100.0 * score / total for name, score in zip(self.rouge_types, sums, strict=True)}
        return {**scores, "gen_len": num_blanks / total}

    def _best_scores(self, text: str, golds: Sequence[str]) -> list[float]:
        lines, gold_lines = self._lines(text), [self._lines(gold) for gold in golds]
        google = [self._google(gold, lines) for gold in gold_lines] if self._google is not None else []
        return [
            max(kilt_rouge_l(text, gold) for gold in golds)
            if name == KILT_ROUGE_L
            else max(scores[name] for scores in google)
            for name in self.rouge_types
        ]

    def _lines(self, text: str) -> str:
        return text if self.split_sentences is None else "\n".join(self.split_sentences(text))


class _GoogleScorer:
    """F1 of each type by Google's package.

    Args:
        scorer: A ``rouge_score.rouge_scorer.RougeScorer``.
    """

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer

    def __call__(self, gold: str, prediction: str) -> Mapping[str, float]:
        return {name: score.fmeasure for name, score in self._scorer.score(gold, prediction).items()}


def _google_scorer(rouge_types: Sequence[str], use_stemmer: bool) -> Scorer:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise MissingPackageError(
            f"ROUGE of the types {', '.join(rouge_types)} needs rouge-score, which is not installed; install it with "
            f"`pip install 'portico[rouge]'`, or set `rouge_types=[{KILT_ROUGE_L}]`, which needs no package."
        ) from error
    return _GoogleScorer(RougeScorer(list(rouge_types), use_stemmer=use_stemmer))


def _check_types(rouge_types: Sequence[str]) -> None:
    allowed = (*_GOOGLE_TYPES, KILT_ROUGE_L)
    wrong = [name for name in rouge_types if name not in allowed]
    if wrong or not rouge_types or isinstance(rouge_types, str):
        raise InputError(f"`rouge_types={rouge_types!r}` has to be a list of some of {', '.join(allowed)}.")
