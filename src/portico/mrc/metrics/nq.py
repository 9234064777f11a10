"""The metrics of Natural Questions.

Shape suffixes: E questions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from portico.mrc.metrics.answer_spans import check_same_questions
from portico.mrc.metrics.nq_records import NqAnswer, NqPrediction, read_predictions, read_references
from portico.mrc.metrics.prefix_sweep import Doubles, PrefixSweep, quality_of_all
from portico.mrc.metrics.question_rows import QuestionRows

_TASKS = ("long_answer", "short_answer")


class NqF1(QuestionRows):
    """F1, precision and recall of long and short answers, which are right or wrong as a whole.

    A question has a gold answer if enough annotators gave one. ``compute`` gives for ``long_answer`` and
    ``short_answer`` ``..._n`` (questions), ``..._f1``, ``..._precision`` and ``..._recall`` of all predictions;
    ``..._best_f1``, ``..._best_precision`` and ``..._best_recall`` of those from ``..._best_threshold`` up, the score
    with the best F1; and for each target ``..._recall_at_precision_0.5`` and the precision there,
    ``..._precision_at_precision_0.5``. All but ``n`` and the threshold are in 0..1.

    Args:
        long_non_null_threshold: How many annotators must have given a long answer.
        short_non_null_threshold: How many annotators must have given short answers, yes or no.
        precision_targets: Precisions at which the best recall is told.
        **kwargs: As in ``torchmetrics.Metric``.

    Source: the official evaluation script of Natural Questions, Kwiatkowski et al. 2019.
    """

    outcomes: list[torch.Tensor] | torch.Tensor

    def __init__(
        self,
        *,
        long_non_null_threshold: int = 2,
        short_non_null_threshold: int = 2,
        precision_targets: Sequence[float] = (0.5, 0.75, 0.9),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.long_non_null_threshold = long_non_null_threshold
        self.short_non_null_threshold = short_non_null_threshold
        self.precision_targets = tuple(precision_targets)
        # A row for each task: the columns of a prefix sweep.
        self.add_rows("outcomes", len(_TASKS), 4)

    def update(self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Any]) -> None:
        """Add a batch.

        Args:
            predictions: As in an official predictions file; or PrimeQA's ``{"example_id", "start_position",
                "end_position", "passage_index", "yes_no_answer", "confidence_score"}``, where the passage is the long
                answer and ``"passage_score"`` may differ from the confidence.
            references: Official records with their ``"annotations"``; or of each question PrimeQA's record of every
                annotator, with the fields of its predictions but the confidence (or one record of lists).

        Raises:
            InputError: If the questions differ, a span does not end after its start, or a prediction is yes or no and
                a span.
        """
        predicted, gold = read_predictions(predictions), read_references(references)
        check_same_questions(predicted, gold)
        outcomes = [self._outcomes(annotators, predicted[key]) for key, annotators in gold.items()]
        self.append_rows("outcomes", torch.tensor(outcomes, dtype=torch.float64))

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far."""
        outcomes = self.rows("outcomes").numpy()
        scores: dict[str, float] = {}
        for row, task in enumerate(_TASKS):
            scores |= {f"{task}_{name}": value for name, value in self._task_scores(outcomes[:, row]).items()}
        return scores

    def _outcomes(self, annotators: list[NqAnswer], predicted: NqPrediction) -> list[list[float]]:
        has_long = sum(not one.long.is_null for one in annotators) >= self.long_non_null_threshold
        has_short = sum(one.is_short for one in annotators) >= self.short_non_null_threshold
        answer = predicted.answer
        long = [
            has_long,
            not answer.long.is_null,
            has_long and any(one.long.equals(answer.long) for one in annotators),
        ]
        short = [has_short, answer.is_short, has_short and _is_right_short(annotators, answer)]
        return [[*long, predicted.long_score], [*short, predicted.short_score]]

    def _task_scores(self, outcomes_E4: Doubles) -> dict[str, float]:
        sweep = PrefixSweep(outcomes_E4)
        of_all, best = quality_of_all(outcomes_E4), sweep.best()
        scores: dict[str, float] = {"n": len(outcomes_E4)}
        scores |= {"f1": of_all.f1, "precision": of_all.precision, "recall": of_all.recall}
        scores |= {f"best_{name}": value for name, value in best._asdict().items()}
        for target, (recall, precision) in sweep.recall_at_precision(self.precision_targets).items():
            scores |= {f"recall_at_precision_{target}": recall, f"precision_at_precision_{target}": precision}
        return scores


def _is_right_short(annotators: list[NqAnswer], answer: NqAnswer) -> bool:
    if answer.yes_no != "none":
        return any(one.yes_no == answer.yes_no for one in annotators)
    return bool(answer.shorts) and any(_same_spans(one, answer) for one in annotators)


def _same_spans(gold: NqAnswer, predicted: NqAnswer) -> bool:
    """Return whether every span of each equals one of the other."""
    return all(
        any(span.equals(other) for other in others)
        for spans, others in ((predicted.shorts, gold.shorts), (gold.shorts, predicted.shorts))
        for span in spans
    )
