"""The metrics of TyDi QA's primary tasks.

Shape suffixes: E questions.
"""

import operator
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch

from portico.mrc.metrics.scores import overlap_f1
from portico.mrc.metrics.spans import Annotated, GivenAnswer, Record, Span, SpanRules, valid_span, yes_no_word
from portico.mrc.metrics.thresholds import PrefixSweep, Quality, QuestionRows
from portico.trust.names import data_only

_TASKS = ("passage", "minimal")
_ENGLISH = ("english", "en")
_LONGEST_NAME = 64


@data_only
class TydiF1(QuestionRows):
    """F1, precision and recall of passages and minimal answers, each language at its best threshold.

    A question has a gold answer if enough annotators gave one. A predicted passage is right if an annotator gave it; a
    minimal answer scores its best overlap with an annotator's span, and yes or no is right if an annotator agrees. In
    each language, answers below the confidence threshold with the best F1 are dropped. ``compute`` returns, all in
    0..1, the means over the languages ``avg_passage_f1``, ``avg_passage_precision``, ``avg_passage_recall`` and the
    same with ``minimal``; and for every language, for example, ``arabic_passage_f1``, ``..._precision``,
    ``..._recall`` and ``..._threshold``.

    Args:
        passage_non_null_threshold: How many annotators must have given a passage.
        minimal_non_null_threshold: How many annotators must have given a span, yes or no.
        include_english: Whether English counts in the means; ``None`` counts it if there is no other language. The
            official script never does.
        **kwargs: As in ``torchmetrics.Metric``.

    Source: the official evaluation script of TyDi QA, arXiv:2003.05002, section 5.
    """

    outcomes: list[torch.Tensor] | torch.Tensor
    languages: list[torch.Tensor] | torch.Tensor

    def __init__(
        self,
        *,
        passage_non_null_threshold: int = 2,
        minimal_non_null_threshold: int = 2,
        include_english: bool | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.passage_non_null_threshold = passage_non_null_threshold
        self.minimal_non_null_threshold = minimal_non_null_threshold
        self.include_english = include_english
        # A row for each task, with the columns of `PrefixSweep`.
        self.add_rows("outcomes", len(_TASKS), 4)
        # Processes can exchange only tensors: the characters of numpy's strings of fixed length.
        self.add_rows("languages", _LONGEST_NAME, dtype=torch.int32)

    def update(self, predictions: Sequence[Record], references: Sequence[Annotated]) -> None:
        """Add a batch.

        Args:
            predictions: PrimeQA's ``{"example_id", "start_position", "end_position", "passage_index",
                "yes_no_answer", "confidence_score"}``, where ``"passage_score"`` may differ from the confidence; or
                the records of the dataset's official predictions file. Of several with one id the last counts.
            references: For each question one record per annotator, with the fields of PrimeQA's predictions except the
                confidence, and ``"language"`` (or one record of lists); or an official record with its
                ``"annotations"``. Of several with one id the last counts.

        Raises:
            InputError: If the questions differ, a span ends before it starts, or a prediction is yes or no and a span.
        """
        thresholds = self.passage_non_null_threshold, self.minimal_non_null_threshold
        outcomes, shared = _RULES.outcomes(predictions, references, *thresholds)
        languages = np.array([language for _, language in shared], f"U{_LONGEST_NAME}")
        self.append_rows("outcomes", torch.tensor(outcomes, dtype=torch.float64))
        self.append_rows("languages", languages.view(np.int32))

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far; the means are 0 if no language counts."""
        outcomes = self.rows("outcomes").numpy()
        language_E = self.rows("languages").numpy().view(f"U{_LONGEST_NAME}")[:, 0]
        qualities: dict[str, dict[str, Quality]] = {
            name: {task: PrefixSweep(outcomes[language_E == name, row]).best() for row, task in enumerate(_TASKS)}
            for name in np.unique(language_E).tolist()
        }
        # tydi_eval.py leaves English out of its macro averages.
        others = [language for language in qualities if language.lower() not in _ENGLISH]
        include_english = not others if self.include_english is None else self.include_english
        counted = list(qualities) if include_english else others
        scores = {
            f"avg_{task}_{name}": _mean([getattr(qualities[language][task], name) for language in counted])
            for task in _TASKS
            for name in ("f1", "recall", "precision")
        }
        for language, of_tasks in qualities.items():
            for task, quality in of_tasks.items():
                scores |= {f"{language}_{task}_{name}": value for name, value in quality._asdict().items()}
        return scores


def _mean(values: list[float]) -> float:
    # Added one by one, as the official script does.
    return float(np.add.accumulate(values)[-1] / len(values)) if values else 0.0


TydiAnswer: TypeAlias = GivenAnswer[int, Span]
"""The index of a passage, and a span in it."""


def _answer(passage: int, start: int, end: int, yes_no: str | int, key: object) -> TydiAnswer:
    span = valid_span(start, end, key=key)
    spans = (span,) if span[0] >= 0 else ()
    return TydiAnswer(int(passage) if passage >= 0 else None, spans, yes_no_word(yes_no, key=key))


def _primeqa_answer(record: Record, key: object) -> TydiAnswer:
    places = record["passage_index"], record["start_position"], record["end_position"]
    return _answer(*places, record["yes_no_answer"], key)


def _prediction(record: Record, key: object) -> TydiAnswer:
    span = record.get("minimal_answer", {})
    start, end = span.get("start_byte_offset", -1), span.get("end_byte_offset", -1)
    return _answer(record.get("passage_answer_index", -1), start, end, record.get("yes_no_answer", "none"), key)


def _annotation(record: Record, key: object) -> TydiAnswer:
    passage = record["passage_answer"]["candidate_index"]
    span = record["minimal_answer"]
    return _answer(passage, span["plaintext_start_byte"], span["plaintext_end_byte"], record["yes_no_answer"], key)


def _spans_worth(gold: tuple[Span, ...], predicted: tuple[Span, ...]) -> float:
    (start, end), (gold_start, gold_end) = predicted[0], gold[0]
    return overlap_f1(min(gold_end, end) - max(gold_start, start), end - start, gold_end - gold_start)


_RULES = SpanRules(
    shared_names=("example_id", "language"),
    official_scores=("passage_answer_score", "minimal_answer_score"),
    read=_primeqa_answer,
    read_prediction=_prediction,
    read_annotation=_annotation,
    is_same_long=operator.eq,
    spans_worth=_spans_worth,
)
