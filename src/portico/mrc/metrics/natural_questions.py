"""The metrics of Natural Questions.

Shape suffixes: E questions.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

from portico.mrc.metrics.spans import Annotated, GivenAnswer, Record, Span, SpanRules, valid_span, yes_no_word
from portico.mrc.metrics.thresholds import PrefixSweep, QuestionRows
from portico.trust.names import data_only

_TASKS = ("long_answer", "short_answer")


@data_only
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
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.long_non_null_threshold = long_non_null_threshold
        self.short_non_null_threshold = short_non_null_threshold
        self.precision_targets = tuple(precision_targets)
        # A row for each task, with the columns of `PrefixSweep`.
        self.add_rows("outcomes", len(_TASKS), 4)

    def update(self, predictions: Sequence[Record], references: Sequence[Annotated]) -> None:
        """Add a batch in a form that ``TydiF1.update`` takes; the passage is the long answer.

        Raises:
            InputError: For the reasons of ``TydiF1.update``, or if a span does not end after its start.
        """
        thresholds = self.long_non_null_threshold, self.short_non_null_threshold
        outcomes, _ = _RULES.outcomes(predictions, references, *thresholds)
        self.append_rows("outcomes", torch.tensor(outcomes, dtype=torch.float64))

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far."""
        outcomes = self.rows("outcomes").numpy()
        scores: dict[str, float] = {}
        for task, outcomes_E4 in zip(_TASKS, outcomes.swapaxes(0, 1), strict=True):
            sweep = PrefixSweep(outcomes_E4)
            of_all, best = sweep.score_all(), sweep.best()
            scores |= {f"{task}_n": len(outcomes_E4), f"{task}_f1": of_all.f1}
            scores |= {f"{task}_precision": of_all.precision, f"{task}_recall": of_all.recall}
            scores |= {f"{task}_best_{name}": value for name, value in best._asdict().items()}
            for target in self.precision_targets:
                recall, precision = sweep.recall_at_precision(target)
                scores[f"{task}_recall_at_precision_{target}"] = recall
                scores[f"{task}_precision_at_precision_{target}"] = precision
        return scores


class NqSpan(NamedTuple):
    """A span in bytes, in tokens, or both, ends exclusive; (-1, -1) where it is not known."""

    byte: Span
    token: Span = (-1, -1)

    def equals(self, other: "NqSpan") -> bool:
        """Return whether both are the same bytes, or the same tokens."""
        # `nonnull_span_equal` of the official eval_utils.py: one unit that agrees is enough.
        return any(mine[0] >= 0 and mine == theirs for mine, theirs in zip(self, other, strict=True))


NqAnswer: TypeAlias = GivenAnswer[NqSpan, NqSpan]


def _are_same_spans(gold: Sequence[NqSpan], predicted: Sequence[NqSpan]) -> bool:
    """Return whether every span of each equals one of the other."""
    # Sets by `equals`, which is not transitive: hence no set of tuples.
    return all(
        any(span.equals(other) for other in others)
        for spans, others in ((predicted, gold), (gold, predicted))
        for span in spans
    )


def _primeqa_answer(record: Record, key: object) -> NqAnswer:
    passage = int(record["passage_index"])
    span = valid_span(record["start_position"], record["end_position"], key=key, may_be_empty=False)
    # Passages are compared by their index only.
    long = NqSpan((passage, passage + 1)) if passage >= 0 else None
    return NqAnswer(long, (NqSpan(span),) if span[0] >= 0 else (), yes_no_word(record["yes_no_answer"], key=key))


def _official_answer(record: Record, key: object) -> NqAnswer:
    shorts = [_official_span(span, key) for span in record.get("short_answers", ())]
    return NqAnswer(
        _official_span(record.get("long_answer", {}), key),
        tuple(span for span in shorts if span is not None),
        yes_no_word(record.get("yes_no_answer", "none"), key=key),
    )


def _official_span(span: Record, key: object) -> NqSpan | None:
    byte, token = (
        valid_span(span.get(f"start_{unit}", -1), span.get(f"end_{unit}", -1), key=key, may_be_empty=False)
        for unit in ("byte", "token")
    )
    return NqSpan(byte, token) if max(byte[0], token[0]) >= 0 else None


_RULES = SpanRules(
    shared_names=("example_id",),
    official_scores=("long_answer_score", "short_answers_score"),
    read=_primeqa_answer,
    read_prediction=_official_answer,
    read_annotation=_official_answer,
    is_same_long=NqSpan.equals,
    spans_worth=_are_same_spans,
)
