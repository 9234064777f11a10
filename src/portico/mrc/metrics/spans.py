"""Answers by position: the part that the metrics of TyDi QA and Natural Questions share, and the scoring of a run.

A reference contains the answers of every annotator of a question, in PrimeQA's form or in the form of the official
files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from portico.errors import InputError
from portico.mrc.datasets.examples import answers_of, target_of

if TYPE_CHECKING:
    from torchmetrics import Metric

    from portico.mrc.postprocess import Answers
    from portico.mrc.postprocess.span_postprocessing import AnsweredQuestions

Record: TypeAlias = Mapping[str, Any]

Annotated: TypeAlias = Record | Sequence[Record]
"""One record per annotator, or one record whose values are lists with one entry per annotator."""

Span: TypeAlias = tuple[int, int]
"""Start and end in characters or bytes, end exclusive; (-1, -1) for none."""

LongT = TypeVar("LongT")
SpanT = TypeVar("SpanT")

YES_NO_NONE = ("yes", "no", "none")
# PrimeQA's target types; all others mean neither yes nor no.
_YES_NO_BY_TARGET_TYPE = {3: "yes", 4: "no"}

# Names in a reference of the columns of an example's "target".
_TARGET_COLUMNS = {
    "start_positions": "start_position",
    "end_positions": "end_position",
    "passage_indices": "passage_index",
    "yes_no_answer": "yes_no_answer",
}


def annotators_of(reference: Annotated) -> list[Record]:
    """Return the answers of the annotators as one record each.

    In a record of lists, scalars apply to all annotators; a record without lists has a single annotator.
    """
    if not isinstance(reference, Mapping):
        return list(reference)
    lists = {name: values for name, values in reference.items() if _is_list(values)}
    if not lists:
        return [reference]
    scalars = {name: value for name, value in reference.items() if name not in lists}
    return [{**scalars, **dict(zip(lists, row, strict=True))} for row in zip(*lists.values(), strict=True)]


def _is_list(values: object) -> bool:
    return isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)


def valid_span(start: int, end: int, *, key: object, may_be_empty: bool = True) -> Span:
    """Return the span if it is valid, (-1, -1) if both ends are negative; ``key`` is its question, for the error."""
    if start < 0 and end < 0:
        return (-1, -1)
    if start < 0 or end < start or (end == start and not may_be_empty):
        raise InputError(
            f"Question {key!r} has an answer from {start} to {end}; give a start and an end "
            f"{'not before' if may_be_empty else 'after'} it, or -1 and -1 if there is no answer."
        )
    return (int(start), int(end))


def yes_no_word(value: str | int, *, key: object) -> str:
    """Return ``"yes"``, ``"no"`` or ``"none"`` from one of these words in any case, or from PrimeQA's target type."""
    if not isinstance(value, str):
        return _YES_NO_BY_TARGET_TYPE.get(int(value), "none")
    if value.lower() not in YES_NO_NONE:
        raise InputError(
            f"Question {key!r} has the yes-no answer {value!r}; expected one of {', '.join(YES_NO_NONE)}."
        )
    return value.lower()


class GivenAnswer(NamedTuple, Generic[LongT, SpanT]):
    """The answer of one annotator or of the model: a passage, ``None`` if there is none, and a short answer.

    The short answer is either ``spans`` or ``yes_no``, which is ``"yes"``, ``"no"`` or ``"none"``.
    """

    long: LongT | None
    spans: tuple[SpanT, ...]
    yes_no: str

    @property
    def is_short(self) -> bool:
        return bool(self.spans) or self.yes_no != "none"


@dataclass(frozen=True, kw_only=True)
class SpanRules(Generic[LongT, SpanT]):
    """How to read the answers of a dataset, each from a record and its id (for errors), and how to score them."""

    shared_names: tuple[str, ...]
    """Keys of the values that all annotators of a question share; the first is the id."""
    official_scores: tuple[str, str]
    """Keys of the scores of the long and of the short answer in official predictions."""
    read: Callable[[Record, object], GivenAnswer[LongT, SpanT]]
    """Reads PrimeQA's form, of a prediction or of an annotator."""
    read_prediction: Callable[[Record, object], GivenAnswer[LongT, SpanT]]
    """Reads the official form of a prediction."""
    read_annotation: Callable[[Record, object], GivenAnswer[LongT, SpanT]]
    """Reads the official form of an annotator's answer."""
    is_same_long: Callable[[LongT, LongT], bool]
    spans_worth: Callable[[tuple[SpanT, ...], tuple[SpanT, ...]], float]
    """Returns the score, in 0..1, of predicted spans against the spans of one annotator."""

    def outcomes(
        self, predictions: Sequence[Record], references: Sequence[Annotated], min_long: int, min_short: int
    ) -> tuple[list[list[list[float]]], list[list[str]]]:
        """Return for each question a row for its long and one for its short answer, and its shared values.

        The rows have the columns of ``PrefixSweep``. A question has a long (short) answer if at least ``min_long``
        (``min_short``) annotators gave one. If several records have the same id, the last one counts.
        """
        predicted = {str(record["example_id"]): self._read_prediction(record) for record in predictions}
        gold = {shared[0]: (shared, annotators) for shared, annotators in map(self._read_reference, references)}
        different = predicted.keys() ^ gold.keys()
        if different:
            key = min(different)
            has, lacks = ("a reference", "prediction") if key in gold else ("a prediction", "reference")
            raise InputError(
                f"{len(different)} questions have only a prediction or only a reference; {key!r} has {has} and no "
                f"{lacks}. Predict every question once (-1 and -1 as the span for no answer)."
            )
        outcomes = []
        for key, (_, annotators) in gold.items():
            answer, long_score, short_score = predicted[key]
            has_long = sum(annotation.long is not None for annotation in annotators) >= min_long
            has_short = sum(annotation.is_short for annotation in annotators) >= min_short
            long_worth, short_worth = self._worth(annotators, answer)
            outcomes.append(
                [
                    [has_long, answer.long is not None, has_long * long_worth, long_score],
                    [has_short, answer.is_short, has_short * short_worth, short_score],
                ]
            )
        return outcomes, [shared for shared, _ in gold.values()]

    def _read_prediction(self, record: Record) -> tuple[GivenAnswer[LongT, SpanT], float, float]:
        """Return a prediction, given in PrimeQA's or in the official form, and the scores of its two answers."""
        key = record["example_id"]
        if "start_position" in record:
            answer = self.read(record, key)
            score = float(record["confidence_score"])
            long_score = float(record.get("passage_score", score))
        else:
            # Official predictions have one score per task, PrimeQA's one for both.
            answer = self.read_prediction(record, key)
            long_score, score = (float(record[name]) for name in self.official_scores)
        if answer.yes_no != "none" and answer.spans:
            raise InputError(
                f"Question {key!r} was answered with {answer.yes_no!r} and with a span; give only one of them (-1 and "
                "-1 as the span, or 'none' as the yes-no answer)."
            )
        if math.isnan(long_score) or math.isnan(score):
            raise InputError(
                f"The answer to question {key!r} has a score that is not a number; give scores without NaN."
            )
        return answer, long_score, score

    def _read_reference(self, reference: Annotated) -> tuple[list[str], list[GivenAnswer[LongT, SpanT]]]:
        """Return the shared values of a question and the answers of its annotators."""
        if isinstance(reference, Mapping) and "annotations" in reference:
            shared = [str(reference[name]) for name in self.shared_names]
            return shared, [self.read_annotation(annotation, shared[0]) for annotation in reference["annotations"]]
        annotators = annotators_of(reference)
        # A reference without annotators may still have the shared values as scalars.
        record: Any = annotators[0] if annotators else reference
        for name in self.shared_names:
            if not annotators and (_is_list(record) or _is_list(record[name])):
                raise InputError(
                    f"A reference without annotators has no `{name}`; for a question without annotations, give "
                    "`{'example_id': ..., 'language': ..., 'annotations': []}`."
                )
        shared = [str(record[name]) for name in self.shared_names]
        return shared, [self.read(annotation, shared[0]) for annotation in annotators]

    def _worth(
        self, annotators: Sequence[GivenAnswer[LongT, SpanT]], answer: GivenAnswer[LongT, SpanT]
    ) -> tuple[float, float]:
        longs = [annotation.long for annotation in annotators if annotation.long is not None]
        long_worth = answer.long is not None and any(self.is_same_long(long, answer.long) for long in longs)
        # A yes-no answer is not compared with spans: it is right or wrong as a whole.
        if answer.yes_no != "none":
            return long_worth, any(annotation.yes_no == answer.yes_no for annotation in annotators)
        worths = [
            self.spans_worth(annotation.spans, answer.spans)
            for annotation in annotators
            if annotation.spans and answer.spans
        ]
        return long_worth, max(worths, default=0.0)


class SpanScores:
    """``compute_metrics`` that scores the spans of answered questions with ``TydiF1`` or ``NqF1``.

    These metrics search for the threshold of "no answer", so each question is scored with its best span. Examples have
    ``id``, optionally ``language``, and the annotators' answers as ``target`` in PrimeQA's base schema; without
    ``target``, each of SQuAD's ``answers`` counts as one annotator.
    """

    def __init__(self, metric: "Metric", examples: Sequence[Record]) -> None:
        self.metric = metric
        self._references = {example["id"]: _reference(example) for example in examples}

    @property
    def most_annotators(self) -> int:
        return max((len(reference["start_position"]) for reference in self._references.values()), default=0)

    def __call__(self, answered: "AnsweredQuestions") -> dict[str, float]:
        return self.compute(_predictions(answered.answers))

    def compute(self, predictions: Sequence[Record]) -> dict[str, float]:
        """Return the metrics of answers in PrimeQA's form; each process must have the answers to all questions."""
        return scores_alone(
            self.metric, predictions, [self._references[prediction["example_id"]] for prediction in predictions]
        )


def scores_alone(metric: "Metric", predictions: Sequence[Record], references: Sequence[Any]) -> dict[str, float]:
    """Return the scores of these answers without asking other processes; ``metric`` stays as it is."""
    metric = metric.clone()
    metric.distributed_available_fn = lambda: False  # torchmetrics reads `sync_on_compute` only when it makes a metric
    metric.update(predictions, references)
    return metric.compute()


def _predictions(answers: "Answers") -> list[dict[str, Any]]:
    best = answers.at_null_threshold(np.inf)
    records = []
    for key, span in best.spans.items():
        if best.null_odds is not None:
            confidence = -float(best.null_odds[key])
        else:
            candidates = best.nbest[key]
            confidence = float(candidates[0]["probability"]) if candidates else 0.0
        start, end = span or (-1, -1)
        records.append(
            {
                "example_id": key,
                "start_position": start,
                "end_position": end,
                "passage_index": best.passages[key],
                "yes_no_answer": int(best.answer_types[key]),
                "confidence_score": confidence,
            }
        )
    return records


def _reference(example: Record) -> dict[str, Any]:
    """Return the annotators' answers to an example in PrimeQA's form, one list per field."""
    shared = {"example_id": example["id"], "language": example.get("language", "UNKNOWN")}
    if (target := target_of(example)) is not None:
        return {**shared, **{name: target[column] for column, name in _TARGET_COLUMNS.items()}}
    texts, starts = answers_of(example)
    return {
        **shared,
        "start_position": list(starts),
        "end_position": [start + len(text) for text, start in zip(texts, starts, strict=True)],
        "passage_index": [0] * len(texts),
        "yes_no_answer": ["NONE"] * len(texts),
    }
