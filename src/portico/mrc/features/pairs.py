"""Each question with each of its contexts.

Shape suffix: C pairs of a question and a context.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from portico.mrc.arrays import Int64s


@dataclass(frozen=True, eq=False)
class Pairs:
    """Questions and contexts, one row a pair.

    Attributes:
        questions: ``C`` texts.
        contexts: ``C`` texts.
        example_index_C: Which example each pair belongs to, ``int64 [C]``, ascending.
        context_index_C: Which of its question's contexts each holds, ``int64 [C]``; ``None`` where all questions have
            one text for a context.
    """

    questions: list[str]
    contexts: list[str]
    example_index_C: Int64s
    context_index_C: Int64s | None


def pairs_of(
    questions: Sequence[str], contexts: Sequence[str | Sequence[str]], max_contexts: int | None = None
) -> Pairs:
    """Pair every question with its context, or with the first ``max_contexts`` of its contexts.

    Args:
        questions: One text an example.
        contexts: A text or a list of texts an example.
        max_contexts: Most contexts of a question; ``None`` for all.
    """
    if all(isinstance(context, str) for context in contexts):
        return Pairs(list(questions), [str(context) for context in contexts], np.arange(len(questions)), None)
    listed = [[context] if isinstance(context, str) else list(context)[:max_contexts] for context in contexts]
    counts = np.array([len(one) for one in listed], np.int64)
    return Pairs(
        [question for question, one in zip(questions, listed, strict=True) for _ in one],
        [context for one in listed for context in one],
        np.repeat(np.arange(len(listed)), counts),
        np.concatenate([np.arange(count) for count in counts]),
    )
