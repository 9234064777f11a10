"""What is to be found in the contexts, in arrays.

Shape suffixes: E examples, C pairs of a question and a context, 2 the first character and the one after the last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Bools, Int64s
from portico.mrc.target_type import TargetType

_NOTHING = (-1, -1)


@dataclass(frozen=True, eq=False)
class Gold:
    """The answer of one annotator to each question.

    Attributes:
        chars_E2: Characters of the answer in its context, ``int64 [E, 2]``; -1 without one.
        passage_E: The passage that holds the answer, of several contexts the context, ``int64 [E]``; -1 without one.
        passage_chars_E2: Characters of that passage in a single context, ``int64 [E, 2]``; -1 without one.
        answer_type_E: The `TargetType` of an answer that is no span: YES, NO or PASSAGE_ANSWER, ``int64 [E]``.
    """

    chars_E2: Int64s
    passage_E: Int64s
    passage_chars_E2: Int64s
    answer_type_E: Int64s

    @property
    def has_answer_E(self) -> Bools:
        """Whether the question has an answer of any kind, ``bool [E]``."""
        return self.passage_E >= 0

    def __getitem__(self, rows: Int64s) -> "Gold":
        """Return the answers to these questions, in this order."""
        return Gold(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def gold_of_targets(targets: Iterable[Mapping[str, Sequence[Any]]], passages: Iterable[Any]) -> Gold:
    """Return what the first annotator said, as PrimeQA trains on it.

    Args:
        targets: The ``target`` of every example.
        passages: The ``passage_candidates`` of every example; ``None`` where it has several contexts instead.
    """
    return _gold(_Row.of_target(target, 0, passages_) for target, passages_ in zip(targets, passages, strict=True))


def gold_of_examples(examples: Iterable[Mapping[str, Any]]) -> Gold:
    """Return the answers to train on: the first answer of each example; see `portico.mrc.readers.read_examples`.

    Of several annotators it is the first with a span, else the first with yes or no, else the first with a passage.
    Without annotators the passage of an answer is the answer itself.
    """
    return _gold(_row(example) for example in examples)


def _row(example: Mapping[str, Any]) -> "_Row":
    target = example.get("target")
    if target is not None and len(target["start_positions"]):
        several = not isinstance(example["context"], str)
        row = _Row.of_target(target, _best_annotator(target), None if several else example.get("passage_candidates"))
        if several or row.passage >= 0 or row.chars == _NOTHING:
            return row
    answers = example["answers"]
    starts = answers["answer_start"]
    start = starts[0] if len(starts) else -1
    if start < 0:
        _check_placed(example)
        return _Row(_NOTHING, -1, _NOTHING, TargetType.PASSAGE_ANSWER)
    chars = (start, start + len(answers["text"][0]))
    return _Row(chars, 0, chars, TargetType.PASSAGE_ANSWER)


def _check_placed(example: Mapping[str, Any]) -> None:
    texts = example["answers"]["text"]
    if len(texts):
        raise InputError(
            f"The answer {texts[0]!r} of example {example.get('id')!r} stands at no known place of its context, so "
            "that no span can be learnt from it; give `answer_start` of every answer, or train a model that writes "
            "its answers (`+experiment=mrc_fid` or `+experiment=mrc_seq2seq`)."
        )


def _best_annotator(target: Mapping[str, Sequence[Any]]) -> int:
    kinds = (
        [start >= 0 for start in target["start_positions"]],
        [yes_no != "NONE" for yes_no in target["yes_no_answer"]],
        [passage >= 0 for passage in target["passage_indices"]],
    )
    return next((kind.index(True) for kind in kinds if True in kind), 0)


@dataclass(frozen=True)
class _Row:
    """One row of `Gold`."""

    chars: tuple[int, int]
    passage: int
    passage_chars: tuple[int, int]
    answer_type: int

    @classmethod
    def of_target(cls, target: Mapping[str, Sequence[Any]], annotator: int, passages: Any) -> "_Row":
        if not len(target["start_positions"]):
            return cls(_NOTHING, -1, _NOTHING, TargetType.PASSAGE_ANSWER)
        chars = (target["start_positions"][annotator], target["end_positions"][annotator])
        passage = target["passage_indices"][annotator]
        answer_type = TargetType.from_bool_label(target["yes_no_answer"][annotator]) or TargetType.PASSAGE_ANSWER
        passage_chars = _NOTHING
        if passages is not None and passage >= 0:
            passage_chars = (passages["start_positions"][passage], passages["end_positions"][passage])
        elif chars[0] >= 0:
            passage_chars = chars
        return cls(chars if chars[0] >= 0 else _NOTHING, passage, passage_chars, answer_type)


def _gold(rows: Iterable[_Row]) -> Gold:
    listed = list(rows)
    return Gold(
        np.array([row.chars for row in listed], np.int64).reshape(-1, 2),
        np.array([row.passage for row in listed], np.int64),
        np.array([row.passage_chars for row in listed], np.int64).reshape(-1, 2),
        np.array([row.answer_type for row in listed], np.int64),
    )
