"""The metrics of TyDi QA's primary tasks.

Shape suffixes: E questions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from portico.mrc.metrics.answer_spans import Prediction, Span, SpanAnswer, check_same_questions
from portico.mrc.metrics.language_names import language_key, pack_names, unpack_names
from portico.mrc.metrics.prefix_sweep import PrefixSweep, Quality
from portico.mrc.metrics.question_rows import QuestionRows
from portico.mrc.metrics.tydi_records import read_predictions, read_references

_TASKS = ("passage", "minimal")
_ENGLISH = ("english", "en")


class TydiF1(QuestionRows):
    """F1, precision and recall of passages and minimal answers, each language at its best threshold.

    A question has a gold answer if enough annotators gave one. A predicted passage is right if an annotator gave it; a
    minimal answer is worth its best overlap with an annotator's span, and yes or no is right if an annotator said so.
    Within a language the answers below the score with the best F1 are dropped. ``compute`` gives, all in 0..1,
    ``avg_passage_f1``, ``avg_passage_precision``, ``avg_passage_recall`` and the same with ``minimal``, means over the
    languages; and of every language, for example, ``arabic_passage_f1``, ``..._precision``, ``..._recall`` and
    ``..._threshold``.

    Args:
        passage_non_null_threshold: How many annotators must have given a passage.
        minimal_non_null_threshold: How many annotators must have given a span, yes or no.
        include_english: Whether English counts in the means; ``None`` counts it if there is no other language. The
            official script never does.
        **kwargs: As in ``torchmetrics.Metric``.

    Source: the official evaluation script of TyDi QA, arXiv:2003.05002, section 5.
    """

    outcomes: list[torch.Tensor] | torch.Tensor
    language_keys: list[torch.Tensor] | torch.Tensor
    language_names: list[torch.Tensor] | torch.Tensor

    def __init__(
        self,
        *,
        passage_non_null_threshold: int = 2,
        minimal_non_null_threshold: int = 2,
        include_english: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.passage_non_null_threshold = passage_non_null_threshold
        self.minimal_non_null_threshold = minimal_non_null_threshold
        self.include_english = include_english
        # A row for each task: the columns of a prefix sweep.
        self.add_rows("outcomes", len(_TASKS), 4)
        self.add_rows("language_keys", dtype=torch.int64)
        self.add_rows("language_names", dtype=torch.uint8)

    def update(self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Any]) -> None:
        """Add a batch.

        Args:
            predictions: PrimeQA's ``{"example_id", "start_position", "end_position", "passage_index",
                "yes_no_answer", "confidence_score"}``, where ``"passage_score"`` may differ from the confidence; or
                those of an official predictions file.
            references: Of each question a record of every annotator, with PrimeQA's ``"example_id"``, ``"language"``,
                ``"start_position"``, ``"end_position"``, ``"passage_index"`` and ``"yes_no_answer"`` (or one record of
                lists); or an official record with its ``"annotations"``.

        Raises:
            InputError: If the questions differ, a span ends before it starts, or a prediction is yes or no and a span.
        """
        predicted, gold = read_predictions(predictions), read_references(references)
        check_same_questions(predicted, gold)
        languages = [language for language, _ in gold.values()]
        outcomes = [self._outcomes(annotators, predicted[key]) for key, (_, annotators) in gold.items()]
        self.append_rows("outcomes", torch.tensor(outcomes, dtype=torch.float64))
        self.append_rows("language_keys", [language_key(language) for language in languages])
        self.append_rows("language_names", pack_names(languages))

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far; means of no language are 0."""
        qualities = self._qualities()
        counted = self._counted_languages(list(qualities))
        scores = {
            f"avg_{task}_{name}": _mean([getattr(qualities[language][task], name) for language in counted])
            for task in _TASKS
            for name in ("f1", "recall", "precision")
        }
        for language, of_tasks in qualities.items():
            for task, quality in of_tasks.items():
                scores |= {f"{language}_{task}_{name}": value for name, value in quality._asdict().items()}
        return scores

    def _outcomes(self, annotators: list[SpanAnswer], predicted: Prediction) -> list[list[float]]:
        has_passage = sum(one.passage_index >= 0 for one in annotators) >= self.passage_non_null_threshold
        has_minimal = sum(one.is_minimal for one in annotators) >= self.minimal_non_null_threshold
        answer = predicted.answer
        passage = [has_passage, answer.passage_index >= 0, has_passage and _is_right_passage(annotators, answer)]
        minimal = [has_minimal, answer.is_minimal, has_minimal * _minimal_worth(annotators, answer)]
        return [[*passage, predicted.passage_score], [*minimal, predicted.minimal_score]]

    def _qualities(self) -> dict[str, dict[str, Quality]]:
        outcomes, keys_E = self.rows("outcomes").numpy(), self.rows("language_keys").numpy()
        return {
            language: {task: PrefixSweep(outcomes[keys_E == key, row]).best() for row, task in enumerate(_TASKS)}
            for key, language in unpack_names(self.rows("language_names").numpy()).items()
        }

    def _counted_languages(self, languages: list[str]) -> list[str]:
        others = [language for language in languages if language.lower() not in _ENGLISH]
        include_english = not others if self.include_english is None else self.include_english
        return languages if include_english else others


def overlap_f1(gold: Span, predicted: Span) -> float:
    """Return the F1 in 0..1 of the characters or bytes that two spans share.

    Args:
        gold: A span that is not null.
        predicted: A span that is not null.
    """
    num_shared = min(gold[1], predicted[1]) - max(gold[0], predicted[0])
    if num_shared <= 0:
        return 0.0
    precision, recall = num_shared / (predicted[1] - predicted[0]), num_shared / (gold[1] - gold[0])
    return 2 * precision * recall / (precision + recall)


def _is_right_passage(annotators: list[SpanAnswer], answer: SpanAnswer) -> bool:
    return answer.passage_index >= 0 and any(one.passage_index == answer.passage_index for one in annotators)


def _minimal_worth(annotators: list[SpanAnswer], answer: SpanAnswer) -> float:
    if answer.yes_no != "none":
        return float(any(one.yes_no == answer.yes_no for one in annotators))
    if answer.span[0] < 0:
        return 0.0
    return max((overlap_f1(one.span, answer.span) for one in annotators if one.span[0] >= 0), default=0.0)


def _mean(values: list[float]) -> float:
    return float(np.add.accumulate(values)[-1] / len(values)) if values else 0.0
