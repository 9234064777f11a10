"""The training labels of windows: where the answer is, of which kind it is, and which windows to train on.

Shape suffixes: F features (windows), T tokens of all windows, 2 the first and the one after the last
character, or the first and the last token.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.arrays import Bools, Int64s
from portico.mrc.datasets.examples import answers_of, target_of
from portico.mrc.features.windows import Windows, first_marked, first_of, last_marked

if TYPE_CHECKING:  # post-processing needs `TargetType`, but not transformers
    from transformers import PreTrainedTokenizerBase

LabelRule: TypeAlias = Literal["characters", "run_qa"]
"""Which tokens an answer is labelled with: those that have its characters, or as transformers' QA example and PrimeQA
search for them, which differs where a character has several tokens or none, and leaves the context. ``"run_qa"`` also
takes a passage that only touches a window as one that the window holds a part of, as PrimeQA does."""

_NO_SPAN = (-1, -1)
_NOWHERE = np.iinfo(np.int64).max


class TargetType(IntEnum):
    """The type of the answer in a window; the values are the classes of an answer-type classifier."""

    NO_ANSWER = 0
    SPAN_ANSWER = 1
    PASSAGE_ANSWER = 2
    YES = 3
    NO = 4

    @classmethod
    def from_bool_label(cls, label: str) -> "TargetType":
        """Return the type of a yes/no annotation: ``"yes"``, ``"no"`` or ``"none"``, in any case."""
        types = {"yes": cls.YES, "no": cls.NO, "none": cls.NO_ANSWER}
        if str(label).lower() not in types:
            raise InputError(f"The yes/no annotation {label!r} is unknown; use YES, NO or NONE.")
        return types[str(label).lower()]


class SubsampleType(IntEnum):
    """The kinds of windows that are kept with different probabilities."""

    POSITIVE = 0
    NEGATIVE_HAS_ANSWER = 1
    NEGATIVE_NO_ANSWER = 2


class Subsampling:
    """Keeps every window with an answer, and others with a probability.

    Args:
        when_has_answer: Probability of keeping a window without an answer to a question that has one elsewhere.
        when_no_answer: Probability of keeping a window of a question without an answer.
        seed: Seed of the choice; no other random state changes.
    """

    def __init__(self, when_has_answer: float, when_no_answer: float, seed: int) -> None:
        for name, value in (("has", when_has_answer), ("no", when_no_answer)):
            if not 0 <= value <= 1:
                raise InputError(
                    f"`negative_sampling_prob_when_{name}_answer={value}` is not a probability; use a number from 0 "
                    "to 1."
                )
        self.probabilities = np.array([1.0, when_has_answer, when_no_answer])
        self.seed = seed

    @property
    def keeps_all(self) -> bool:
        return bool((self.probabilities == 1).all())

    def draws(self) -> np.random.Generator:
        """Return the generator of the random numbers of one pass over the windows."""
        return np.random.default_rng(self.seed)

    def select(self, subsample_type_F: Int64s, draws: np.random.Generator | None = None) -> Int64s:
        """Return the indices of the windows that are kept, in order; the same seed keeps the same windows.

        Raises an ``InputError`` if no window is kept. With ``draws``, the windows are a part of a larger set, and all
        of them may be dropped.
        """
        drawn_F = (self.draws() if draws is None else draws).random(len(subsample_type_F))
        kept = np.flatnonzero(drawn_F < self.probabilities[subsample_type_F])
        if draws is None:
            self.refuse_nothing(len(kept), f"{len(subsample_type_F)} windows")
        return kept

    def refuse_nothing(self, num_kept: int, given: str) -> None:
        """Raise an ``InputError`` if nothing is kept; ``given`` describes the windows in the message."""
        if not num_kept:
            raise InputError(
                f"Subsampling leaves none of {given} to train on, because none has an answer; "
                "give questions with answers, or raise the probabilities of keeping windows without."
            )


def subsample_types(target_type_F: Int64s, has_answer_F: Bools) -> Int64s:
    """Return the ``SubsampleType`` of each window, ``int64 [F]``.

    Args:
        target_type_F: The ``TargetType`` of each window.
        has_answer_F: Whether the question of each window has an answer.
    """
    negative_F = np.where(has_answer_F, SubsampleType.NEGATIVE_HAS_ANSWER, SubsampleType.NEGATIVE_NO_ANSWER)
    return np.where(target_type_F == TargetType.NO_ANSWER, negative_F, SubsampleType.POSITIVE).astype(np.int64)


class GoldAnswer(NamedTuple):
    """The answer of one annotator to one question; -1 marks missing values."""

    chars: tuple[int, int] = _NO_SPAN
    passage: int = -1
    """The passage (of several contexts: the context) that holds the answer."""
    passage_chars: tuple[int, int] = _NO_SPAN
    """Characters of that passage in a single context."""
    answer_type: TargetType = TargetType.PASSAGE_ANSWER
    """The type of an answer without a span: YES, NO or PASSAGE_ANSWER."""

    def restrict_to(self, length: int) -> "GoldAnswer":
        """Return the answer in the first ``length`` characters of its context, where its span may be incomplete."""
        if self.chars[1] <= length:
            return self
        return self._replace(chars=_NO_SPAN, answer_type=TargetType.PASSAGE_ANSWER)


class Gold:
    """The answer to the question of every window, in columns ``int64 [F, 2]`` or ``[F]``; see ``GoldAnswer``."""

    def __init__(self, answers: Iterable[GoldAnswer], example_index_F: Int64s) -> None:
        rows = [(*answer.chars, answer.passage, *answer.passage_chars, answer.answer_type) for answer in answers]
        table_F6 = np.array(rows, np.int64).reshape(-1, 6)[example_index_F]
        self.chars_F2 = table_F6[:, :2]
        self.passage_F = table_F6[:, 2]
        self.passage_chars_F2 = table_F6[:, 3:5]
        self.answer_type_F = table_F6[:, 5]
        self.has_answer_F: Bools = self.passage_F >= 0


def gold_of_example(example: Mapping[str, Any]) -> GoldAnswer:
    """Return the answer to train on: the first one of the example; see ``portico.mrc.datasets.read_examples``.

    Of several annotators it is the first with a span, otherwise the first with yes or no, otherwise the first with a
    passage. Without annotators the passage of an answer is the answer itself. An answer without offset is refused.
    """
    target = target_of(example)
    if target is not None and len(target["start_positions"]):
        several = not isinstance(example["context"], str)
        passages = None if several else example.get("passage_candidates")
        kinds = (
            [start >= 0 for start in target["start_positions"]],
            [yes_no != "NONE" for yes_no in target["yes_no_answer"]],
            [passage >= 0 for passage in target["passage_indices"]],
        )
        annotator = next((kind.index(True) for kind in kinds if True in kind), 0)
        gold = gold_of_target(target, annotator, passages)
        if several or gold.passage >= 0 or gold.chars == _NO_SPAN:
            return gold
    texts, starts = answers_of(example)
    start = starts[0] if len(starts) else -1
    start = start if isinstance(start, int) else -1
    if start >= 0:
        chars = (start, start + len(texts[0]))
        return GoldAnswer(chars, 0, chars)
    if len(texts):
        raise InputError(
            f"The answer {texts[0]!r} of example {example.get('id')!r} has no known position in its context, so an "
            "extractive model cannot be trained on it; set `answer_start` of every answer, or train a generative "
            "model (`+experiment=mrc_fid` or `+experiment=mrc_seq2seq`)."
        )
    return GoldAnswer()


def gold_of_target(
    target: Mapping[str, Sequence[Any]], annotator: int, passages: Mapping[str, Sequence[int]] | None
) -> GoldAnswer:
    """Return one annotator's answer in a ``target`` of the base schema.

    ``passages`` are the ``passage_candidates`` of the example, or ``None`` if it has several contexts instead.
    """
    if not len(target["start_positions"]):
        return GoldAnswer()
    chars = (target["start_positions"][annotator], target["end_positions"][annotator])
    chars = chars if chars[0] >= 0 else _NO_SPAN
    passage = target["passage_indices"][annotator]
    passage_chars = chars
    if passages is not None and passage >= 0:
        passage_chars = (passages["start_positions"][passage], passages["end_positions"][passage])
    answer_type = TargetType.from_bool_label(target["yes_no_answer"][annotator]) or TargetType.PASSAGE_ANSWER
    return GoldAnswer(chars, passage, passage_chars, answer_type)


def label_windows(
    windows: Windows,
    gold: Gold,
    context_index_F: Int64s | None,
    null_token_F: Int64s,
    *,
    rule: LabelRule = "characters",
) -> dict[str, Int64s]:
    """Label the windows of a tokenizer with the types of PrimeQA.

    The columns, ``int64 [F]``, are ``start_positions`` and ``end_positions`` (the first and the last token of the
    answer, or the token of "no answer" twice, see :func:`null_tokens`) and ``target_type``.

    A window without the passage that holds the answer has no answer. One with the passage has the span as its answer
    if it holds all of it, otherwise yes, no or the passage. For ``context_index_F`` see ``WindowCutter.cut``; without
    it, passages are spans of characters of the only context.
    """
    has_passage_F = _has_passage(windows, gold, context_index_F, touching=rule == "run_qa")
    chars_F2 = np.where(has_passage_F[:, None], gold.chars_F2, -1)
    if rule == "characters":
        positions_F2, has_span_F = _answer_positions(windows, chars_F2, context_index_F)
    else:
        positions_F2, has_span_F = _answer_positions_of_peers(windows, chars_F2)
    positions_F2 = np.where(has_span_F[:, None], positions_F2, null_token_F[:, None])
    without_span_F = np.where(gold.chars_F2[:, 0] >= 0, TargetType.PASSAGE_ANSWER, gold.answer_type_F)
    type_F = np.where(has_span_F, TargetType.SPAN_ANSWER, without_span_F)
    type_F = np.where(has_passage_F, type_F, TargetType.NO_ANSWER).astype(np.int64)
    return {"start_positions": positions_F2[:, 0], "end_positions": positions_F2[:, 1], "target_type": type_F}


def _has_passage(windows: Windows, gold: Gold, context_index_F: Int64s | None, *, touching: bool) -> Bools:
    if context_index_F is not None:
        return gold.has_answer_F & (context_index_F == gold.passage_F)
    first_F, last_F = windows.context_bounds()
    start_F = windows.char_offsets_T2[np.minimum(first_F, len(windows.char_offsets_T2) - 1), 0]
    end_F = windows.char_offsets_T2[last_F, 1]
    passage_start_F, passage_end_F = gold.passage_chars_F2.T
    if touching:
        # PrimeQA compares the ends, which are not part of window and passage, as if they were.
        overlaps_F = (passage_start_F <= end_F) & (passage_end_F >= start_F)
    else:
        # A passage without characters is the character where it starts, as an answer is.
        overlaps_F = (passage_start_F < end_F) & (np.maximum(passage_end_F, passage_start_F + 1) > start_F)
    return gold.has_answer_F & overlaps_F & (first_F <= last_F)


def null_tokens(windows: Windows, tokenizer: "PreTrainedTokenizerBase", rule: LabelRule = "characters") -> Int64s:
    """Return the token of each row that represents "no answer", ``int64 [F]``.

    It is the first class token, without one the first that begins a text, otherwise the first token of the row that
    is neither padding nor of the context: an answer could begin there. Other rules also take a class token that is
    padding or stands in the text, and otherwise token 0.
    """
    starts_F, stops_F = windows.row_starts[:-1], windows.row_starts[1:]
    checks = rule == "characters"
    found_F = stops_F
    for mark in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        places = np.flatnonzero(windows.input_ids_T == (-1 if mark is None else mark))
        if checks:
            is_text = windows.in_context_T[places] | windows.char_offsets_T2[places].any(axis=1)
            places = places[(windows.attention_mask_T[places] == 1) & ~is_text]
        if len(places):
            found_F = np.where(found_F < stops_F, found_F, first_of(places, starts_F, stops_F))
    if checks and not (found_F < stops_F).all():
        is_other_T = windows.attention_mask_T.astype(np.bool_) & ~windows.in_context_T
        found_F = np.where(found_F < stops_F, found_F, windows.first_in_row(is_other_T))
    return np.where(found_F < stops_F, found_F - starts_F, 0)


def _answer_positions(windows: Windows, chars_F2: Int64s, context_index_F: Int64s | None) -> tuple[Int64s, Bools]:
    """Return first and last token of the answer in each window, ``int64 [F, 2]``, and which hold it, ``bool [F]``.

    They are the first and the last token with a character of the answer. A window holds the answer if no other window
    has more of its characters: some characters (spaces, removed accents) have no token.
    """
    first_F, last_F = windows.context_bounds()
    start_T, end_T = windows.char_offsets_T2.T
    # An answer without characters, as PrimeQA has some, is the character where it starts.
    chars_F2 = np.stack([chars_F2[:, 0], np.maximum(chars_F2[:, 1], chars_F2[:, 0] + 1)], axis=1)
    answer_T2 = np.repeat(chars_F2.astype(np.int32), windows.lengths_F, axis=0)
    from_F = first_marked((end_T > answer_T2[:, 0]) & (end_T > start_T), first_F, last_F + 1)
    to_F = last_marked((start_T < answer_T2[:, 1]) & (end_T > start_T), first_F, last_F + 1)
    has_part_F = (chars_F2[:, 0] >= 0) & (from_F <= to_F)
    # The characters of the answer in each window; a window that has none of them begins and ends nothing.
    last_token = len(start_T) - 1
    begin_F = np.where(has_part_F, np.maximum(start_T[np.minimum(from_F, last_token)], chars_F2[:, 0]), _NOWHERE)
    end_F = np.where(has_part_F, np.minimum(end_T[to_F], chars_F2[:, 1]), -1)
    is_next_F = np.diff(windows.example_index_F, prepend=-1) != 0
    if context_index_F is not None:
        is_next_F |= np.diff(context_index_F, prepend=-1) != 0
    rows, context_F = np.flatnonzero(is_next_F), np.cumsum(is_next_F) - 1
    inside_F = has_part_F & (begin_F == np.minimum.reduceat(begin_F, rows)[context_F])
    inside_F &= end_F == np.maximum.reduceat(end_F, rows)[context_F]
    return np.stack([from_F, to_F], axis=1) - windows.row_starts[:-1, None], inside_F


def _answer_positions_of_peers(windows: Windows, chars_F2: Int64s) -> tuple[Int64s, Bools]:
    """Return what ``_answer_positions`` does, as the QA example of transformers and PrimeQA compute it.

    The first token is the last one that starts at or before the answer, the last token the first one that ends at or
    after it.
    """
    first_F, last_F = windows.context_bounds()
    start_T, end_T = windows.char_offsets_T2.T
    inside_F = (chars_F2[:, 0] >= 0) & (first_F <= last_F)
    inside_F &= start_T[np.minimum(first_F, len(start_T) - 1)] <= chars_F2[:, 0]
    inside_F &= end_T[last_F] >= chars_F2[:, 1]
    # As in transformers' run_qa.py (prepare_train_features): forward to the first token that starts after the answer
    # does, and back to the last one that ends before the answer does. Its forward search does not stop at the end of
    # the context, so that an answer that starts in the last context token is labelled with the end of the row.
    answer_T2 = np.repeat(chars_F2.astype(np.int32), windows.lengths_F, axis=0)
    after_F = first_marked(start_T > answer_T2[:, 0], first_F, windows.row_starts[1:])
    before_F = last_marked(end_T < answer_T2[:, 1], first_F, last_F + 1)
    return np.stack([after_F - 1, before_F + 1], axis=1) - windows.row_starts[:-1, None], inside_F
