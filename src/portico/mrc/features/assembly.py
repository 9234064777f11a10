"""Windows gathered from a pool that holds every token once.

Shape suffixes: E examples, F features (windows), P tokens of the pool, T tokens of all windows, 6 parts of the pool.
"""

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from portico.mrc.arrays import Bools, Bytes, Int32s, Int64s
from portico.mrc.features.pair_encoding import context_is_second
from portico.mrc.features.shared_encoding import EncodedTexts, PairTemplate
from portico.mrc.features.windows import Windows, WindowSize, ranges

_BEFORE, _BETWEEN, _AFTER, _PAD, _QUESTION, _CONTEXT = range(6)
_QUESTION_FIRST = [_BEFORE, _QUESTION, _BETWEEN, _CONTEXT, _AFTER, _PAD]
_CONTEXT_FIRST = [_PAD, _BEFORE, _CONTEXT, _BETWEEN, _QUESTION, _AFTER]


@dataclass(frozen=True, eq=False)
class TokenPool:
    """Every token a window can hold: special tokens, padding, all questions, all contexts.

    Attributes:
        questions: The encoded questions.
        contexts: The encoded contexts.
        size: Window length and overlap; the overlap fits beside every question.
        part_order: The parts of the pool in the order in which a window holds a piece of each.
        part_sizes_6: Tokens in each part, ``int64 [6]``.
        ids_P: Vocabulary ids, ``int32 [P]``.
        types_P: Segment ids, ``uint8 [P]``.
        part_P: The part each token belongs to, ``int64 [P]``.
        offsets_P2: Characters ``[start, end)`` of each token, ``int32 [P, 2]``.
    """

    questions: EncodedTexts
    contexts: EncodedTexts
    size: WindowSize
    part_order: list[int]
    part_sizes_6: Int64s
    ids_P: Int32s
    types_P: Bytes
    part_P: Int64s
    offsets_P2: Int32s


def token_pool(
    tokenizer: PreTrainedTokenizerBase,
    template: PairTemplate,
    questions: EncodedTexts,
    contexts: EncodedTexts,
    size: WindowSize,
) -> TokenPool:
    """Lay out the pool for a tokenizer that puts `template` around the texts."""
    second = context_is_second(tokenizer)
    question_type, context_type = template.text_types if second else template.text_types[::-1]
    num_pads = size.max_seq_length if size.pad else 0
    textless_ids = [*template.special_ids, [tokenizer.pad_token_id] * num_pads]
    ids = [*(np.array(part, np.int32) for part in textless_ids), questions.ids_P, contexts.ids_P]
    part_sizes_6 = np.array([len(part) for part in ids])
    special_types = [type_id for part in template.special_types for type_id in part]
    other_types = np.repeat([tokenizer.pad_token_type_id, question_type, context_type], part_sizes_6[_PAD:])
    num_textless = part_sizes_6[:_QUESTION].sum()
    return TokenPool(
        questions,
        contexts,
        size,
        _QUESTION_FIRST if second else _CONTEXT_FIRST,
        part_sizes_6,
        np.concatenate(ids),
        np.concatenate([special_types, other_types]).astype(np.uint8),
        np.repeat(np.arange(6), part_sizes_6),
        np.concatenate([np.zeros((num_textless, 2), np.int32), questions.offsets_P2, contexts.offsets_P2]),
    )


def assemble(pool: TokenPool, examples_E: Int64s) -> Windows:
    """Return the windows of these examples, ``int64 [E]``, numbered from 0 in the result."""
    question_length_E = pool.questions.lengths_E[examples_E]
    room_E = pool.size.max_seq_length - pool.part_sizes_6[:_PAD].sum() - question_length_E
    example_F, cut_F, length_F = _cut(pool.contexts.lengths_E[examples_E], room_E, pool.size.doc_stride)

    part_starts_6 = np.cumsum(pool.part_sizes_6) - pool.part_sizes_6
    starts_F6 = np.tile(part_starts_6, (len(example_F), 1))
    starts_F6[:, _QUESTION] += pool.questions.starts_E[examples_E][example_F]
    starts_F6[:, _CONTEXT] += pool.contexts.starts_E[examples_E][example_F] + cut_F
    lengths_F6 = np.tile(pool.part_sizes_6, (len(example_F), 1))
    lengths_F6[:, _QUESTION] = question_length_E[example_F]
    lengths_F6[:, _CONTEXT] = length_F
    lengths_F6[:, _PAD] = 0
    if pool.size.pad:
        lengths_F6[:, _PAD] = pool.size.max_seq_length - lengths_F6.sum(axis=1)

    pool_T = ranges(starts_F6[:, pool.part_order].ravel(), lengths_F6[:, pool.part_order].ravel())
    in_context_P: Bools = pool.part_P == _CONTEXT
    attention_P = (pool.part_P != _PAD).astype(np.uint8)
    return Windows(
        example_F,
        np.concatenate(([0], np.cumsum(lengths_F6.sum(axis=1)))),
        pool.ids_P[pool_T],
        attention_P[pool_T],
        pool.types_P[pool_T],
        pool.offsets_P2[pool_T],
        in_context_P[pool_T],
    )


def _cut(length_E: Int64s, room_E: Int64s, doc_stride: int) -> tuple[Int64s, Int64s, Int64s]:
    """Cut every context into windows: the example, first context token and context tokens of each, ``int64 [F]``."""
    step_E = room_E - doc_stride
    num_windows_E = 1 + np.maximum(0, -(-(length_E - room_E) // step_E))
    example_F = np.repeat(np.arange(len(length_E)), num_windows_E)
    first_F = np.repeat(np.cumsum(num_windows_E) - num_windows_E, num_windows_E)
    cut_F = (np.arange(len(example_F)) - first_F) * step_E[example_F]
    return example_F, cut_F, np.minimum(room_E[example_F], length_E[example_F] - cut_F)
