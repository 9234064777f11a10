"""Answers by their position: what the metrics of TyDi QA and Natural Questions share, and how a run is scored by them.

A reference contains the answers of every annotator of a question, in PrimeQA's form or in that of the official files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from portico.errors import InputError

if TYPE_CHECKING:
    from torchmetrics import Metric

    from portico.mrc.postprocess import Answers
    from portico.mrc.postprocess.span_postprocessing import AnsweredQuestions

Record: TypeAlias = Mapping[str, Any]

Annotated: TypeAlias = Record | Sequence[Record]
"""One record per annotator, or one record whose values are lists with one entry per annotator."""

Span: TypeAlias = tuple[int, int]
"""Start and end in characters or bytes, end exclusive; (-1, -1) for none."""

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

    Args:
        reference: Such records already, or one record of lists; scalars in it hold for all annotators. A record
            without lists is that of a single annotator.
    """
    if not isinstance(reference, Mapping):
        return list(reference)
    lists = {name: values for name, values in reference.items() if _is_list(values)}
    if not lists:
        return [reference]
    scalars = {name: value for name, value in reference.items() if name not in lists}
    return [{**scalars, **dict(zip(lists, row, strict=True))} for row in zip(*lists.values(), strict=True)]


def shared_value(reference: Annotated, annotators: list[Record], name: str) -> Any:
    """Return a value that all annotators share; a reference without annotators may still have it as a scalar."""
    if annotators:
        return annotators[0][name]
    if isinstance(reference, Mapping) and not _is_list(reference[name]):
        return reference[name]
    raise InputError(
        f"A reference without annotators has no `{name}`; for a question without annotations, give "
        "`{'example_id': ..., 'language': ..., 'annotations': []}`."
    )


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)


def checked_span(start: int, end: int, *, key: object, may_be_empty: bool = True) -> Span:
    """Return a valid span, (-1, -1) if both ends are negative.

    Args:
        start: Its start, negative for none.
        end: Its end, exclusive.
        key: Id of the question, for the error.
        may_be_empty: Whether the end may equal the start.
    """
    if start < 0 and end < 0:
        return (-1, -1)
    if start < 0 or end < start or (end == start and not may_be_empty):
        raise InputError(
            f"Question {key!r} has an answer from {start} to {end}; give a start and an end "
            f"{'not before' if may_be_empty else 'after'} it, or -1 and -1 if there is no answer."
        )
    return (int(start), int(end))


def checked_yes_no(value: Any, *, key: object) -> str:
    """Return ``"yes"``, ``"no"`` or ``"none"`` for such a word in any case, or for one of PrimeQA's target types."""
    if not isinstance(value, str):
        return _YES_NO_BY_TARGET_TYPE.get(int(value), "none")
    if value.lower() not in YES_NO_NONE:
        raise InputError(
            f"Question {key!r} has the yes-no answer {value!r}; expected one of {', '.join(YES_NO_NONE)}."
        )
    return value.lower()


def read_prediction(
    record: Record,
    read: Callable[[Record, object], Any],
    read_official: Callable[[Record, object], Any],
    official_scores: tuple[str, str],
) -> tuple[Any, float, float]:
    """Return a prediction in PrimeQA's form or in the official one, and the scores of its long and short answer.

    Raises:
        InputError: If it has both a span and yes or no, or a score is NaN.
    """
    key = record["example_id"]
    if "start_position" in record:
        answer, score = read(record, key), float(record["confidence_score"])
        long_score = float(record.get("passage_score", score))
    else:
        # Official predictions have one score per task, PrimeQA's one for both.
        answer = read_official(record, key)
        long_score, score = (float(record[name]) for name in official_scores)
    if answer.yes_no != "none" and answer.has_span:
        raise InputError(
            f"Question {key!r} was answered with {answer.yes_no!r} and with a span; give only one of them (-1 and -1 "
            "as the span, or 'none' as the yes-no answer)."
        )
    if math.isnan(long_score) or math.isnan(score):
        raise InputError(f"The answer to question {key!r} has a score that is not a number; give scores without NaN.")
    return answer, long_score, score


def check_same_questions(predictions: Mapping[Any, Any], references: Mapping[Any, Any]) -> None:
    different = predictions.keys() ^ references.keys()
    if different:
        key = min(different, key=str)
        has, lacks = ("a reference", "prediction") if key in references else ("a prediction", "reference")
        raise InputError(
            f"{len(different)} questions have only a prediction or only a reference; {key!r} has {has} and no "
            f"{lacks}. Predict every question once (-1 and -1 as the span for no answer)."
        )


class SpanScores:
    """``compute_metrics`` that scores the spans of answered questions with `TydiF1` or `NqF1`.

    These metrics find the threshold for "no answer" themselves, so each question is scored with its best span.

    Args:
        metric: The metric.
        examples: The evaluated examples, with ``id``, optionally ``language``, and the annotators' answers as
            ``target`` in PrimeQA's base schema; otherwise each of SQuAD's ``answers`` counts as one annotator.
    """

    def __init__(self, metric: "Metric", examples: Sequence[Record]) -> None:
        self.metric = metric
        self._references = {example["id"]: _reference(example) for example in examples}

    @property
    def most_annotators(self) -> int:
        return max((len(reference["start_position"]) for reference in self._references.values()), default=0)

    def __call__(self, answered: "AnsweredQuestions") -> dict[str, float]:
        """Return the metrics of the answers; every process has the answers to all questions."""
        predictions = _predictions(answered.answers)
        metric = self.metric.clone()
        metric.sync_on_compute = False
        metric.update(predictions, [self._references[record["example_id"]] for record in predictions])
        scores: dict[str, float] = metric.compute()
        return scores


def _predictions(answers: "Answers") -> list[dict[str, Any]]:
    best = answers.at_null_threshold(np.inf)
    return [
        {
            "example_id": key,
            **dict(zip(("start_position", "end_position"), span or (-1, -1), strict=True)),
            "passage_index": best.passages[key],
            "yes_no_answer": int(best.answer_types[key]),
            "confidence_score": _confidence(best, key),
        }
        for key, span in best.spans.items()
    ]


def _confidence(answers: "Answers", key: str) -> float:
    if answers.null_odds is not None:
        return -float(answers.null_odds[key])
    candidates = answers.nbest[key]
    return float(candidates[0]["probability"]) if candidates else 0.0


def _reference(example: Record) -> dict[str, Any]:
    """Return the annotators' answers to an example in PrimeQA's form, one list per field."""
    shared = {"example_id": example["id"], "language": example.get("language", "UNKNOWN")}
    if "target" in example:
        return {**shared, **{name: example["target"][column] for column, name in _TARGET_COLUMNS.items()}}
    texts, starts = example["answers"]["text"], example["answers"]["answer_start"]
    return {
        **shared,
        "start_position": list(starts),
        "end_position": [start + len(text) for text, start in zip(texts, starts, strict=True)],
        "passage_index": [0] * len(texts),
        "yes_no_answer": ["NONE"] * len(texts),
    }
