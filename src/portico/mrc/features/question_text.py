"""Questions as they are encoded: without leading blanks, long ones cut."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from portico.mrc.features.shared_encoding import encode_texts


def shortened(questions: Sequence[str], max_q_char_len: int | None) -> list[str]:
    """Return the questions without leading blanks, cut to their first characters."""
    return [question.lstrip()[:max_q_char_len] for question in questions]


def cut_at_token(questions: Sequence[str], tokenizer: PreTrainedTokenizerFast, longest: int) -> list[str]:
    """Return the questions cut to about ``longest`` tokens, at a token's end."""
    encoded = encode_texts(tokenizer, questions)
    too_long_E = encoded.lengths_E > longest
    if not too_long_E.any():
        return list(questions)
    cut_at_E = encoded.offsets_P2[encoded.starts_E + np.minimum(longest, encoded.lengths_E) - 1, 1]
    return [
        question[:cut_at] if too_long else question
        for question, cut_at, too_long in zip(questions, cut_at_E, too_long_E, strict=True)
    ]
