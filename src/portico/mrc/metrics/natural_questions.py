"""The metrics of Natural Questions.

Shape suffixes: E questions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from portico.mrc.metrics.spans import (
    Annotated,
    Record,
    Span,
    annotators_of,
    check_same_questions,
    checked_span,
    checked_yes_no,
    read_prediction,
    shared_value,
)
from portico.mrc.metrics.thresholds import Doubles, PrefixSweep, QuestionRows, quality_of_all

_TASKS = ("long_answer", "short_answer")
_OFFICIAL_SCORES = ("long_answer_score", "short_answers_score")


class NqF1(QuestionRows):
    """F1, precision and recall of long and short answers, each of which is right or wrong as a whole.

    A question has a gold answer if enough annotators gave one. ``compute`` returns for ``long_answer`` and
    ``short_answer`` ``..._n`` (questions), ``..._f1``, ``..._precision`` and ``..._recall`` of all predictions;
    ``..._best_f1``, ``..._best_precision`` and ``..._best_recall`` of those from ``..._best_threshold`` up, the
    confidence with the best F1; and for each target ``..._recall_at_precision_0.5`` and the precision there,
    ``..._precision_at_precision_0.5``. All but ``n`` and the threshold are in 0..1.

    Args:
        long_non_null_threshold: How many annotators must have given a long answer.
        short_non_null_threshold: How many annotators must have given short answers, yes or no.
        precision_targets: Precisions at which to report the best recall.
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
        # A row for each task, with the columns of `PrefixSweep`.
        self.add_rows("outcomes", len(_TASKS), 4)

    def update(self, predictions: Sequence[Record], references: Sequence[Annotated]) -> None:
        """Add a batch.

        Args:
            predictions: The records of an official predictions file; or PrimeQA's ``{"example_id", "start_position",
                "end_position", "passage_index", "yes_no_answer", "confidence_score"}``, where the passage is the long
                answer and ``"passage_score"`` may differ from the confidence. Of several with one id the last counts.
            references: Official records with their ``"annotations"``; or for each question PrimeQA's record of every
                annotator, with the fields of its predictions except the confidence (or one record of lists). Of
                several with one id the last counts.

        Raises:
            InputError: If the questions differ, a span does not end after its start, or a prediction is yes or no and
                a span.
        """
        predicted = {
            str(record["example_id"]): read_prediction(record, _answer, _official_answer, _OFFICIAL_SCORES)
            for record in predictions
        }
        gold = dict(map(_reference, references))
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

    def _outcomes(self, annotators: list["NqAnswer"], predicted: tuple["NqAnswer", float, float]) -> list[list[float]]:
        has_long = sum(not one.long.is_null for one in annotators) >= self.long_non_null_threshold
        has_short = sum(one.is_short for one in annotators) >= self.short_non_null_threshold
        answer, long_score, short_score = predicted
        is_right_long = any(one.long.equals(answer.long) for one in annotators)
        return [
            [has_long, not answer.long.is_null, has_long and is_right_long, long_score],
            [has_short, answer.is_short, has_short and _is_right_short(annotators, answer), short_score],
        ]

    def _task_scores(self, outcomes_E4: Doubles) -> dict[str, float]:
        sweep = PrefixSweep(outcomes_E4)
        of_all, best = quality_of_all(outcomes_E4), sweep.best()
        scores: dict[str, float] = {"n": len(outcomes_E4)}
        scores |= {"f1": of_all.f1, "precision": of_all.precision, "recall": of_all.recall}
        scores |= {f"best_{name}": value for name, value in best._asdict().items()}
        for target, (recall, precision) in sweep.recall_at_precision(self.precision_targets).items():
            scores |= {f"recall_at_precision_{target}": recall, f"precision_at_precision_{target}": precision}
        return scores


class NqSpan(NamedTuple):
    """A span in bytes, in tokens, or both, ends exclusive; (-1, -1) where it is not known."""

    byte: Span
    token: Span

    @property
    def is_null(self) -> bool:
        return self.byte[0] < 0 and self.token[0] < 0

    def equals(self, other: "NqSpan") -> bool:
        """Return whether both are the same bytes, or the same tokens."""
        # `nonnull_span_equal` of the official eval_utils.py: one unit that agrees is enough.
        return any(mine[0] >= 0 and mine == theirs for mine, theirs in zip(self, other, strict=True))


class NqAnswer(NamedTuple):
    """The long and the short answers of one annotator or of the model, the latter without null spans.

    `yes_no` is ``"yes"``, ``"no"``, or ``"none"`` if the answer is neither.
    """

    long: NqSpan
    shorts: tuple[NqSpan, ...]
    yes_no: str

    @property
    def has_span(self) -> bool:
        return bool(self.shorts)

    @property
    def is_short(self) -> bool:
        return self.has_span or self.yes_no != "none"


def _is_right_short(annotators: list[NqAnswer], answer: NqAnswer) -> bool:
    if answer.yes_no != "none":
        return any(one.yes_no == answer.yes_no for one in annotators)
    return bool(answer.shorts) and any(_same_spans(one, answer) for one in annotators)


def _same_spans(gold: NqAnswer, predicted: NqAnswer) -> bool:
    """Return whether every span of each equals one of the other."""
    # Sets by `equals`, which is not transitive: hence no set of tuples.
    return all(
        any(span.equals(other) for other in others)
        for spans, others in ((predicted.shorts, gold.shorts), (gold.shorts, predicted.shorts))
        for span in spans
    )


_NULL = NqSpan((-1, -1), (-1, -1))


def _reference(reference: Annotated) -> tuple[str, list[NqAnswer]]:
    if isinstance(reference, Mapping) and "annotations" in reference:
        key = str(reference["example_id"])
        return key, [_official_answer(annotation, key) for annotation in reference["annotations"]]
    annotators = annotators_of(reference)
    key = str(shared_value(reference, annotators, "example_id"))
    return key, [_answer(one, key) for one in annotators]


def _answer(record: Record, key: object) -> NqAnswer:
    """Read PrimeQA's form, of a prediction or of an annotator."""
    passage = int(record["passage_index"])
    span = checked_span(record["start_position"], record["end_position"], key=key, may_be_empty=False)
    # Passages are compared by their index only.
    long = _NULL if passage < 0 else NqSpan((passage, passage + 1), (-1, -1))
    return NqAnswer(long, _without_null([NqSpan(span, (-1, -1))]), checked_yes_no(record["yes_no_answer"], key=key))


def _official_answer(record: Record, key: object) -> NqAnswer:
    """Read the official form, of a prediction or of an annotator."""
    return NqAnswer(
        _official_span(record.get("long_answer", {}), key),
        _without_null([_official_span(span, key) for span in record.get("short_answers", ())]),
        checked_yes_no(record.get("yes_no_answer", "none"), key=key),
    )


def _official_span(span: Record, key: object) -> NqSpan:
    byte, token = (
        checked_span(span.get(f"start_{unit}", -1), span.get(f"end_{unit}", -1), key=key, may_be_empty=False)
        for unit in ("byte", "token")
    )
    return NqSpan(byte, token)


def _without_null(spans: Sequence[NqSpan]) -> tuple[NqSpan, ...]:
    return tuple(span for span in spans if not span.is_null)
