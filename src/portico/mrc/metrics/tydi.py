"""The metrics of TyDi QA's primary tasks.

Shape suffixes: E questions.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
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
from portico.mrc.metrics.thresholds import PrefixSweep, Quality, QuestionRows

_TASKS = ("passage", "minimal")
_OFFICIAL_SCORES = ("passage_answer_score", "minimal_answer_score")
_ENGLISH = ("english", "en")
_NAME_END = b"\0"


class TydiF1(QuestionRows):
    """F1, precision and recall of passages and minimal answers, each language at its best threshold.

    A question has a gold answer if enough annotators gave one. A predicted passage is right if an annotator gave it; a
    minimal answer is worth its best overlap with an annotator's span, and yes or no is right if an annotator agrees.
    In each language, answers with a lower confidence than the threshold with the best F1 are dropped. ``compute``
    returns, all in 0..1, ``avg_passage_f1``, ``avg_passage_precision``, ``avg_passage_recall`` and the same with
    ``minimal``, means over the languages; and for every language, for example, ``arabic_passage_f1``,
    ``..._precision``, ``..._recall`` and ``..._threshold``.

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
        # A row for each task, with the columns of `PrefixSweep`.
        self.add_rows("outcomes", len(_TASKS), 4)
        # Processes can exchange only tensors: languages travel as hashes, with their names as bytes.
        self.add_rows("language_keys", dtype=torch.int64)
        self.add_rows("language_names", dtype=torch.uint8)

    def update(self, predictions: Sequence[Record], references: Sequence[Annotated]) -> None:
        """Add a batch.

        Args:
            predictions: PrimeQA's ``{"example_id", "start_position", "end_position", "passage_index",
                "yes_no_answer", "confidence_score"}``, where ``"passage_score"`` may differ from the confidence; or
                the records of an official predictions file. Of several with one id the last counts.
            references: For each question one record per annotator, with PrimeQA's ``"example_id"``, ``"language"``,
                ``"start_position"``, ``"end_position"``, ``"passage_index"`` and ``"yes_no_answer"`` (or one record of
                lists); or an official record with its ``"annotations"``. Of several with one id the last counts.

        Raises:
            InputError: If the questions differ, a span ends before it starts, or a prediction is yes or no and a span.
        """
        predicted = {
            str(record["example_id"]): read_prediction(record, _answer, _official_answer, _OFFICIAL_SCORES)
            for record in predictions
        }
        gold = dict(map(_reference, references))
        check_same_questions(predicted, gold)
        languages = [language for language, _ in gold.values()]
        outcomes = [self._outcomes(annotators, predicted[key]) for key, (_, annotators) in gold.items()]
        self.append_rows("outcomes", torch.tensor(outcomes, dtype=torch.float64))
        self.append_rows("language_keys", [_language_key(language) for language in languages])
        self.append_rows("language_names", _pack_names(languages))

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything added so far; means over no language are 0."""
        outcomes, keys_E = self.rows("outcomes").numpy(), self.rows("language_keys").numpy()
        qualities: dict[str, dict[str, Quality]] = {
            language: {task: PrefixSweep(outcomes[keys_E == key, row]).best() for row, task in enumerate(_TASKS)}
            for key, language in _unpack_names(self.rows("language_names").numpy()).items()
        }
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

    def _outcomes(
        self, annotators: list["TydiAnswer"], predicted: tuple["TydiAnswer", float, float]
    ) -> list[list[float]]:
        has_passage = sum(one.passage_index >= 0 for one in annotators) >= self.passage_non_null_threshold
        has_minimal = sum(one.is_minimal for one in annotators) >= self.minimal_non_null_threshold
        answer, passage_score, minimal_score = predicted
        names_passage = answer.passage_index >= 0
        is_right_passage = names_passage and any(one.passage_index == answer.passage_index for one in annotators)
        return [
            [has_passage, names_passage, has_passage and is_right_passage, passage_score],
            [has_minimal, answer.is_minimal, has_minimal * _minimal_worth(annotators, answer), minimal_score],
        ]

    def _counted_languages(self, languages: list[str]) -> list[str]:
        # tydi_eval.py leaves English out of its macro averages.
        others = [language for language in languages if language.lower() not in _ENGLISH]
        include_english = not others if self.include_english is None else self.include_english
        return languages if include_english else others


class TydiAnswer(NamedTuple):
    """The answer of one annotator or of the model: a passage, -1 for none, and a span in it.

    `yes_no` is ``"yes"``, ``"no"``, or ``"none"`` if the answer is neither.
    """

    passage_index: int
    span: Span
    yes_no: str

    @property
    def has_span(self) -> bool:
        return self.span[0] >= 0

    @property
    def is_minimal(self) -> bool:
        return self.has_span or self.yes_no != "none"


def overlap_f1(gold: Span, predicted: Span) -> float:
    """Return the F1 in 0..1 of the characters or bytes that two spans share; neither may be (-1, -1)."""
    num_shared = min(gold[1], predicted[1]) - max(gold[0], predicted[0])
    if num_shared <= 0:
        return 0.0
    precision, recall = num_shared / (predicted[1] - predicted[0]), num_shared / (gold[1] - gold[0])
    return 2 * precision * recall / (precision + recall)


def _minimal_worth(annotators: list[TydiAnswer], answer: TydiAnswer) -> float:
    # A yes-no answer is not compared with spans: it is right or wrong as a whole.
    if answer.yes_no != "none":
        return float(any(one.yes_no == answer.yes_no for one in annotators))
    if not answer.has_span:
        return 0.0
    return max((overlap_f1(one.span, answer.span) for one in annotators if one.has_span), default=0.0)


def _mean(values: list[float]) -> float:
    # Added one by one, as the official script does.
    return float(np.add.accumulate(values)[-1] / len(values)) if values else 0.0


def _reference(reference: Annotated) -> tuple[str, tuple[str, list[TydiAnswer]]]:
    if isinstance(reference, Mapping) and "annotations" in reference:
        key = str(reference["example_id"])
        return key, (reference["language"], [_annotation(one, key) for one in reference["annotations"]])
    annotators = annotators_of(reference)
    key, language = (shared_value(reference, annotators, name) for name in ("example_id", "language"))
    return str(key), (str(language), [_answer(one, key) for one in annotators])


def _answer(record: Record, key: object) -> TydiAnswer:
    """Read PrimeQA's form, of a prediction or of an annotator."""
    return TydiAnswer(
        int(record["passage_index"]),
        checked_span(record["start_position"], record["end_position"], key=key),
        checked_yes_no(record["yes_no_answer"], key=key),
    )


def _official_answer(record: Record, key: object) -> TydiAnswer:
    span = record.get("minimal_answer", {})
    return TydiAnswer(
        int(record.get("passage_answer_index", -1)),
        checked_span(span.get("start_byte_offset", -1), span.get("end_byte_offset", -1), key=key),
        checked_yes_no(record.get("yes_no_answer", "none"), key=key),
    )


def _annotation(annotation: Record, key: object) -> TydiAnswer:
    span = annotation["minimal_answer"]
    return TydiAnswer(
        int(annotation["passage_answer"]["candidate_index"]),
        checked_span(span["plaintext_start_byte"], span["plaintext_end_byte"], key=key),
        checked_yes_no(annotation["yes_no_answer"], key=key),
    )


def _language_key(name: str) -> int:
    """Return a 64-bit number for a name, the same in every process and run."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def _pack_names(names: Iterable[str]) -> npt.NDArray[np.uint8]:
    """Return the distinct names as bytes, each followed by `_NAME_END`, ``uint8 [N]``."""
    return np.frombuffer(b"".join(name.encode() + _NAME_END for name in sorted(set(names))), np.uint8).copy()


def _unpack_names(packed: npt.NDArray[np.uint8]) -> dict[int, str]:
    """Return the names by their keys in alphabetical order, from concatenated results of `_pack_names`."""
    names = sorted({name.decode() for name in packed.tobytes().split(_NAME_END)[:-1]})
    return {_language_key(name): name for name in names}
