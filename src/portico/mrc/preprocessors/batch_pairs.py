from collections.abc import Mapping
from typing import Any

from portico.errors import InputError
from portico.mrc.features.pairs import Pairs, pairs_of
from portico.mrc.features.question_text import shortened


def pairs_of_batch(
    examples: Mapping[str, Any], *, max_q_char_len: int, max_contexts: int | None, single_context: bool
) -> Pairs:
    """Pair the questions of a batch in the base schema with their contexts.

    Args:
        examples: The batch, a list under each column.
        max_q_char_len: Longer questions are cut to this many characters.
        max_contexts: Most contexts of a question; of a single context, most passages, behind which it is cut.
        single_context: Whether every question has one context.

    Raises:
        InputError: If a question has several contexts instead of one.
    """
    questions = shortened(examples["question"], max_q_char_len)
    if not single_context:
        return pairs_of(questions, [list(contexts) for contexts in examples["context"]], max_contexts)
    return pairs_of(questions, [_single_context(examples, row, max_contexts) for row in range(len(questions))])


def _single_context(examples: Mapping[str, Any], row: int, max_passages: int | None) -> str:
    contexts = examples["context"][row]
    if len(contexts) != 1:
        raise InputError(
            f"Example {examples['example_id'][row]!r} has {len(contexts)} contexts, but "
            "`single_context_multiple_passages=True` takes one; set it to False, or join them."
        )
    if max_passages is None or "passage_candidates" not in examples:
        return str(contexts[0])
    ends = examples["passage_candidates"][row]["end_positions"][:max_passages]
    return str(contexts[0][: ends[-1]] if ends else contexts[0])
