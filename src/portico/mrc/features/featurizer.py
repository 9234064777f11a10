"""Examples to model inputs: the tokenised windows of question and context, labelled for training."""

from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerFast

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.columns import Examples, column
from portico.mrc.features.feature_set import FeatureSet
from portico.mrc.features.gold import Gold, gold_of_examples
from portico.mrc.features.labelling import WindowLabels, label_windows
from portico.mrc.features.pairs import Pairs, pairs_of
from portico.mrc.features.question_text import cut_at_token, shortened
from portico.mrc.features.subsampling import Subsampling, subsample_types
from portico.mrc.features.window_cutter import WindowCutter
from portico.mrc.features.windows import Windows, WindowSize

__all__ = ["FeatureSet", "Featurizer"]


class Featurizer:
    """Turns examples into the windows a question answering model reads.

    The windows equal those of the QA example of transformers: the question whole, the context cut into windows that
    overlap, question and context swapped for tokenizers that pad on the left. Each distinct text is tokenised once
    where that gives the same windows, which is tried on a sample of the examples every time. A question with several
    contexts gets windows of each.

    Args:
        tokenizer: A fast tokenizer.
        max_seq_length: Longest window in tokens, question and special tokens included.
        doc_stride: Tokens that two neighbouring windows of a context share.
        max_question_length: Longer questions are cut to about this many tokens, at a token's end; ``None`` keeps them.
        max_q_char_len: Longer questions are cut to this many characters; ``None`` keeps them.
        max_contexts: Most contexts of a question that are read; ``None`` for all.
        subsampling: Which windows without an answer are trained on; ``None`` for all.
        target_types: Whether labelled rows carry ``target_type``, the
            :class:`~portico.mrc.target_type.TargetType` of the window, for a head that classifies it.
        pad_to_max_length: Whether every window is padded to `max_seq_length` here and not by the collator.
        compat_label_bug: Reproduce the labels of the QA example of transformers where an answer begins in the last
            context token of a window: its first token is then labelled as the last of the row.

    Raises:
        InputError: If the tokenizer is not a fast one, or `doc_stride` is negative or not below `max_seq_length`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_question_length: int | None = None,
        max_q_char_len: int | None = None,
        max_contexts: int | None = None,
        subsampling: Subsampling | None = None,
        target_types: bool = False,
        pad_to_max_length: bool = False,
        compat_label_bug: bool = False,
    ) -> None:
        self._cutter = WindowCutter(tokenizer, WindowSize(max_seq_length, doc_stride, pad_to_max_length))
        self._tokenizer = tokenizer
        self._max_question_length = max_question_length
        self._max_q_char_len = max_q_char_len
        self._max_contexts = max_contexts
        self._subsampling = subsampling
        self._target_types = target_types
        self._compat_label_bug = compat_label_bug

    def train_features(self, examples: Examples) -> FeatureSet:
        """Return the labelled windows of all examples, less those that subsampling leaves out.

        A window that does not hold the whole first answer, and every window of an unanswerable question, is labelled
        with its CLS token.

        Raises:
            InputError: If there are no examples, a question leaves no room for the windows to advance, or subsampling
                leaves nothing.
        """
        pairs = self._pairs(examples)
        windows = self._cutter.cut(pairs.questions, pairs.contexts)
        gold = self._gold(windows, pairs, examples)
        labels = self._labels(windows, pairs, gold)
        columns = self._columns(labels)
        if self._subsampling is not None and not self._subsampling.keeps_all:
            kept = np.flatnonzero(self._subsampling.keep(subsample_types(labels.target_type_F, gold.has_answer_E)))
            if not len(kept):
                raise InputError(
                    "Subsampling leaves no window to train on: none holds an answer; give questions with answers, or "
                    "set higher probabilities of keeping windows without."
                )
            windows, columns = windows.take(kept), {name: column_F[kept] for name, column_F in columns.items()}
        return FeatureSet(_of_examples(windows, pairs), token_type_ids=self._uses_token_types, labels=columns)

    def eval_features(self, examples: Examples, *, labels: bool = False) -> FeatureSet:
        """Return the windows of all examples with what post-processing needs: example and character offsets.

        Args:
            examples: The examples.
            labels: Label the windows as for training, so that an evaluation has a loss.

        Raises:
            InputError: As in `train_features`.
        """
        pairs = self._pairs(examples)
        windows = self._cutter.cut(pairs.questions, pairs.contexts)
        columns = self._columns(self._labels(windows, pairs, self._gold(windows, pairs, examples))) if labels else None
        return FeatureSet(
            _of_examples(windows, pairs),
            token_type_ids=self._uses_token_types,
            labels=columns,
            example_ids=column(examples, "id"),
            context_index=_context_index(windows, pairs),
        )

    @property
    def _uses_token_types(self) -> bool:
        return "token_type_ids" in self._tokenizer.model_input_names

    def _pairs(self, examples: Examples) -> Pairs:
        questions = shortened(column(examples, "question"), self._max_q_char_len)
        if self._max_question_length is not None and questions:
            questions = cut_at_token(questions, self._tokenizer, self._max_question_length)
        return pairs_of(questions, column(examples, "context"), self._max_contexts)

    def _gold(self, windows: Windows, pairs: Pairs, examples: Examples) -> Gold:
        """Return the answer to the question of each window."""
        return gold_of_examples(examples)[pairs.example_index_C[windows.example_index_F]]

    def _labels(self, windows: Windows, pairs: Pairs, gold: Gold) -> WindowLabels:
        context_index_F = _context_index(windows, pairs)
        return label_windows(windows, gold, context_index_F, self._tokenizer, compat_label_bug=self._compat_label_bug)

    def _columns(self, labels: WindowLabels) -> dict[str, Int64s]:
        positions_F2 = labels.positions_F2
        columns = {"start_positions": positions_F2[:, 0], "end_positions": positions_F2[:, 1]}
        return {**columns, "target_type": labels.target_type_F} if self._target_types else columns


def _context_index(windows: Windows, pairs: Pairs) -> Int64s | None:
    return None if pairs.context_index_C is None else pairs.context_index_C[windows.example_index_F]


def _of_examples(windows: Windows, pairs: Pairs) -> Windows:
    """Return the windows of pairs as windows of the examples that the pairs belong to."""
    return replace(windows, example_index_F=pairs.example_index_C[windows.example_index_F])
