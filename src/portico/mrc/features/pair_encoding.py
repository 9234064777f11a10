"""Windows by the tokenizer's own pair encoding: the definition of what they must be."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizerBase

from portico.mrc.features.windows import Windows, WindowSize

_PAIRS_PER_CALL = 1000  # bounds the memory of the tokenizer's Python lists


def context_is_second(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the question comes first; it comes second for tokenizers that pad on the left."""
    return bool(tokenizer.padding_side == "right")


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], contexts: Sequence[str], size: WindowSize
) -> Windows:
    """Return the windows of every question with its context, one tokenizer call for every thousand pairs.

    Args:
        tokenizer: A fast tokenizer.
        questions: ``E`` texts, at least one.
        contexts: ``E`` texts; only these are truncated.
        size: Window length and overlap; the caller has checked that the overlap fits beside every question.
    """
    parts = [
        _columns(encoding, first, second=context_is_second(tokenizer))
        for first, encoding in _calls(tokenizer, questions, contexts, size)
    ]
    example_index_F, lengths_F, *tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Windows(example_index_F, np.concatenate(([0], np.cumsum(lengths_F))), *tokens)


def _calls(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], contexts: Sequence[str], size: WindowSize
) -> Iterator[tuple[int, BatchEncoding]]:
    second = context_is_second(tokenizer)
    for first in range(0, len(questions), _PAIRS_PER_CALL):
        pair = (list(questions[first : first + _PAIRS_PER_CALL]), list(contexts[first : first + _PAIRS_PER_CALL]))
        yield (
            first,
            tokenizer(
                *(pair if second else pair[::-1]),
                truncation="only_second" if second else "only_first",
                max_length=size.max_seq_length,
                stride=size.doc_stride,
                padding="max_length" if size.pad else False,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_attention_mask=True,
                return_token_type_ids=True,
            ),
        )


def _columns(encoding: BatchEncoding, first_example: int, *, second: bool) -> tuple[np.ndarray[Any, Any], ...]:
    """Return example indices, row lengths, ids, mask, types, offsets and context marks of one call."""
    rows = encoding["input_ids"]
    context = int(second)
    in_context = (sequence == context for f in range(len(rows)) for sequence in encoding.sequence_ids(f))
    return (
        np.asarray(encoding["overflow_to_sample_mapping"], np.int64) + first_example,
        np.array([len(row) for row in rows], np.int64),
        np.fromiter(chain.from_iterable(rows), np.int32),
        np.fromiter(chain.from_iterable(encoding["attention_mask"]), np.uint8),
        np.fromiter(chain.from_iterable(encoding["token_type_ids"]), np.uint8),
        np.array(list(chain.from_iterable(encoding["offset_mapping"])), np.int32).reshape(-1, 2),
        np.fromiter(in_context, np.bool_),
    )
