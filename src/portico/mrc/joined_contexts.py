"""Examples of several contexts as examples of one, for a page that shows each question above one text."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from portico.mrc.columns import contexts_of

_BETWEEN = "\n\n"


def with_one_context(example: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an example whose contexts stand below each other in one text, and whose answers are counted in it.

    Args:
        example: As :func:`~portico.mrc.readers.read_examples` makes it.
    """
    contexts = contexts_of(example)
    if isinstance(example["context"], str):
        return example
    starts, answers = context_starts(contexts), example["answers"]
    if "target" in example:
        target = example["target"]
        places = [
            starts[max(passage, 0)]
            for start, passage in zip(target["start_positions"], target["passage_indices"], strict=True)
            if start >= 0
        ]
        shifted = [place + start for place, start in zip(places, answers["answer_start"], strict=True)]
        answers = {"text": answers["text"], "answer_start": shifted}
    return {**example, "context": _BETWEEN.join(contexts), "answers": answers}


def context_starts(contexts: Sequence[str]) -> list[int]:
    """Return where each context begins in the joined text, in characters."""
    return list(accumulate((len(context) + len(_BETWEEN) for context in contexts[:-1]), initial=0))
