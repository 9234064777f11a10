"""Questions and contexts to windows, the fast way where it gives what the tokenizer gives."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.features.assembly import assemble, token_pool
from portico.mrc.features.pair_encoding import context_is_second, encode_pairs
from portico.mrc.features.shared_encoding import EncodedTexts, encode_texts, pair_template
from portico.mrc.features.windows import Windows, WindowSize

_NUM_TRIED = 4  # pairs of each kind on which the fast way must equal the tokenizer's own


class WindowCutter:
    """Cuts contexts into windows, each beside its question.

    Each distinct text is tokenised once where that gives the windows of the tokenizer's pair encoding, which is tried
    on a sample of the pairs every time.

    Args:
        tokenizer: A fast tokenizer.
        size: Window length and overlap.

    Raises:
        InputError: If the tokenizer is not a fast one, or the overlap is negative or not below the length.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, size: WindowSize) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                f"{type(tokenizer).__name__} is not a fast tokenizer, and only these know which characters a token "
                f"stands for; load it with AutoTokenizer.from_pretrained(..., use_fast=True)."
            )
        if not 0 <= size.doc_stride < size.max_seq_length:
            raise InputError(
                f"doc_stride={size.doc_stride} must be at least 0 and below max_seq_length={size.max_seq_length}: it "
                f"is the number of tokens that two neighbouring windows share; set a smaller doc_stride."
            )
        self.tokenizer = tokenizer
        self._size = size

    def cut(self, questions: Sequence[str], contexts: Sequence[str]) -> Windows:
        """Return the windows of every pair, one pair after the other.

        Args:
            questions: ``E`` texts.
            contexts: ``E`` texts; only these are cut.

        Raises:
            InputError: If there are no pairs, or a question leaves no room for the windows to advance.
        """
        if not len(questions):
            raise InputError("There are no examples to make features of; give at least one question with its context.")
        encoded_questions = encode_texts(self.tokenizer, questions)
        self._check_room(questions, encoded_questions.lengths_E)
        return self._shared_windows(questions, encoded_questions, contexts) or encode_pairs(
            self.tokenizer, questions, contexts, self._size
        )

    def _check_room(self, questions: Sequence[str], lengths_E: Int64s) -> None:
        longest = int(lengths_E.argmax())
        room = self._size.max_seq_length - self.tokenizer.num_special_tokens_to_add(pair=True) - lengths_E[longest]
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
        encoded_contexts = encode_texts(self.tokenizer, contexts)
        tried = _sample(encoded_questions.lengths_E, encoded_contexts.lengths_E)
        pair = questions[tried[0]], contexts[tried[0]]
        template = pair_template(self.tokenizer, *(pair if context_is_second(self.tokenizer) else pair[::-1]))
        if template is None:
            return None
        pool = token_pool(self.tokenizer, template, encoded_questions, encoded_contexts, self._size)
        expected = encode_pairs(
            self.tokenizer, [questions[e] for e in tried], [contexts[e] for e in tried], self._size
        )
        if not assemble(pool, tried).equals(expected):
            return None
        return assemble(pool, np.arange(len(questions)))


def _sample(question_lengths_E: Int64s, context_lengths_E: Int64s) -> Int64s:
    """Return a few pairs: those with the longest context, the longest questions, and some evenly spread."""
    spread = np.linspace(0, len(context_lengths_E) - 1, _NUM_TRIED, dtype=np.int64)
    longest = [np.argsort(-lengths_E)[:_NUM_TRIED] for lengths_E in (context_lengths_E, question_lengths_E)]
    return np.array(list(dict.fromkeys(np.concatenate([*longest, spread]).tolist())), np.int64)
