"""Examples to model inputs: the tokenised windows of question and context, labelled for training."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.columns import Examples, column
from portico.mrc.features.assembly import assemble, token_pool
from portico.mrc.features.feature_set import FeatureSet
from portico.mrc.features.labels import answer_chars, answer_positions, cls_positions
from portico.mrc.features.pair_encoding import context_is_second, encode_pairs
from portico.mrc.features.shared_encoding import EncodedTexts, encode_texts, pair_template
from portico.mrc.features.windows import Windows, WindowSize

__all__ = ["FeatureSet", "Featurizer"]

_NUM_TRIED = 4  # examples of each kind on which the fast way must equal the tokenizer's own


class Featurizer:
    """Turns SQuAD records into the windows a question answering model reads.

    The windows equal those of the QA example of transformers: the question whole, the context cut into windows that
    overlap, question and context swapped for tokenizers that pad on the left. Each distinct text is tokenised once
    where that gives the same windows, which is tried on a sample of the examples every time.

    Args:
        tokenizer: A fast tokenizer.
        max_seq_length: Longest window in tokens, question and special tokens included.
        doc_stride: Tokens that two neighbouring windows of a context share.
        max_question_length: Longer questions are cut to about this many tokens, at a token's end; ``None`` keeps them.
        pad_to_max_length: Whether every window is padded to `max_seq_length` here and not by the collator.
        compat_label_bug: Reproduce the labels of the QA example of transformers where an answer begins in the last
            context token of a window: its first token is then labelled as the last of the row.

    Raises:
        InputError: If the tokenizer is not a fast one, or `doc_stride` is negative or not below `max_seq_length`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_question_length: int | None = None,
        pad_to_max_length: bool = False,
        compat_label_bug: bool = False,
    ) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                f"{type(tokenizer).__name__} is not a fast tokenizer, and only these know which characters a token "
                f"stands for; load it with AutoTokenizer.from_pretrained(..., use_fast=True)."
            )
        if not 0 <= doc_stride < max_seq_length:
            raise InputError(
                f"doc_stride={doc_stride} must be at least 0 and below max_seq_length={max_seq_length}: it is the "
                f"number of tokens that two neighbouring windows share; set a smaller doc_stride."
            )
        self._tokenizer = tokenizer
        self._size = WindowSize(max_seq_length, doc_stride, pad_to_max_length)
        self._max_question_length = max_question_length
        self._compat_label_bug = compat_label_bug

    def train_features(self, examples: Examples) -> FeatureSet:
        """Return the labelled windows of all examples.

        A window that does not hold the whole first answer, and every window of an unanswerable question, is labelled
        with its CLS token.

        Raises:
            InputError: If there are no examples, or a question leaves no room for the windows to advance.
        """
        windows = self._windows(examples)
        positions_F2 = self._positions(windows, examples)
        return FeatureSet(windows, token_type_ids=self._uses_token_types, positions_F2=positions_F2)

    def eval_features(self, examples: Examples, *, labels: bool = False) -> FeatureSet:
        """Return the windows of all examples with what post-processing needs: example and character offsets.

        Args:
            examples: The examples.
            labels: Label the windows as for training, so that an evaluation has a loss.

        Raises:
            InputError: As in `train_features`.
        """
        windows = self._windows(examples)
        return FeatureSet(
            windows,
            token_type_ids=self._uses_token_types,
            positions_F2=self._positions(windows, examples) if labels else None,
            example_ids=column(examples, "id"),
        )

    def _positions(self, windows: Windows, examples: Examples) -> Int64s:
        return answer_positions(
            windows,
            answer_chars(column(examples, "answers")),
            cls_positions(windows, self._tokenizer),
            compat_label_bug=self._compat_label_bug,
        )

    @property
    def _uses_token_types(self) -> bool:
        return "token_type_ids" in self._tokenizer.model_input_names

    def _windows(self, examples: Examples) -> Windows:
        if len(examples) == 0:
            raise InputError("There are no examples to make features of; give at least one question with its context.")
        questions, encoded_questions = self._questions(examples)
        self._check_room(questions, encoded_questions.lengths_E)
        contexts = column(examples, "context")
        return self._shared_windows(questions, encoded_questions, contexts) or encode_pairs(
            self._tokenizer, questions, contexts, self._size
        )

    def _questions(self, examples: Examples) -> tuple[list[str], EncodedTexts]:
        questions = [question.lstrip() for question in column(examples, "question")]
        encoded = encode_texts(self._tokenizer, questions)
        longest = self._max_question_length
        if longest is None or encoded.lengths_E.max() <= longest:
            return questions, encoded
        cut_at_E = encoded.offsets_P2[encoded.starts_E + np.minimum(longest, encoded.lengths_E) - 1, 1]
        too_long_E = encoded.lengths_E > longest
        questions = [
            question[:cut_at] if too_long else question
            for question, cut_at, too_long in zip(questions, cut_at_E, too_long_E, strict=True)
        ]
        return questions, encode_texts(self._tokenizer, questions)

    def _check_room(self, questions: Sequence[str], lengths_E: Int64s) -> None:
        longest = int(lengths_E.argmax())
        room = self._size.max_seq_length - self._tokenizer.num_special_tokens_to_add(pair=True) - lengths_E[longest]
        if self._size.doc_stride >= room:
            raise InputError(
                f"doc_stride={self._size.doc_stride} does not fit: with max_seq_length={self._size.max_seq_length} "
                f"the longest question ({lengths_E[longest]} tokens: {questions[longest][:80]!r}) leaves "
                f"{max(room, 0)} tokens for the context, and doc_stride must be smaller than that; set a smaller "
                f"doc_stride, a larger max_seq_length, or max_question_length."
            )

    def _shared_windows(
        self, questions: Sequence[str], encoded_questions: EncodedTexts, contexts: Sequence[str]
    ) -> Windows | None:
        """Return the windows by encoding each text once, or ``None`` if this tokenizer encodes pairs differently."""
        encoded_contexts = encode_texts(self._tokenizer, contexts)
        tried = _sample(encoded_questions.lengths_E, encoded_contexts.lengths_E)
        pair = questions[tried[0]], contexts[tried[0]]
        template = pair_template(self._tokenizer, *(pair if context_is_second(self._tokenizer) else pair[::-1]))
        if template is None:
            return None
        pool = token_pool(self._tokenizer, template, encoded_questions, encoded_contexts, self._size)
        expected = encode_pairs(
            self._tokenizer, [questions[e] for e in tried], [contexts[e] for e in tried], self._size
        )
        if not assemble(pool, tried).equals(expected):
            return None
        return assemble(pool, np.arange(len(questions)))


def _sample(question_lengths_E: Int64s, context_lengths_E: Int64s) -> Int64s:
    """Return a few examples: those with the longest context, the longest questions, and some evenly spread."""
    spread = np.linspace(0, len(context_lengths_E) - 1, _NUM_TRIED, dtype=np.int64)
    longest = [np.argsort(-lengths_E)[:_NUM_TRIED] for lengths_E in (context_lengths_E, question_lengths_E)]
    return np.array(list(dict.fromkeys(np.concatenate([*longest, spread]).tolist())), np.int64)
