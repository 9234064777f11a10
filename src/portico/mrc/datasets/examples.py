"""Examples: questions with their contexts and answers, as a list of mappings or as a ``datasets.Dataset``."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from portico.data.defects import InvalidRecord
from portico.errors import InputError
from portico.mrc.datasets.values import answer_columns, texts_of

if TYPE_CHECKING:
    from datasets import Dataset
    from pyarrow import Array

Example: TypeAlias = dict[str, Any]
"""One question: ``id``, ``title``, ``context`` (a string or a list of strings), ``question``, ``answers``; for some
formats ``language``, ``target`` and ``passage_candidates``. Other keys belong to the format."""

Examples: TypeAlias = Sequence[Mapping[str, Any]]
"""A list of examples, or a ``datasets.Dataset`` of them."""

_SEPARATOR = "\n\n"


def arrow_view(dataset: "Dataset") -> "Dataset":
    """Return a view of a ``datasets.Dataset`` with all columns as Arrow arrays; a dataset in this format as it is.

    To read several columns, make the view once: for every change of format, datasets computes a fingerprint, which
    takes about a millisecond.
    """
    if dataset.format["type"] == "arrow" and len(dataset.format["columns"]) == len(dataset.column_names):
        return dataset
    view = copy(dataset)  # `with_format` deep-copies the description of the dataset, which costs more than a column
    view.set_format("arrow")
    return view


def arrow_column(dataset: "Dataset", name: str) -> "Array":
    """Return one column of a ``datasets.Dataset`` as an Arrow array, one entry per row."""
    chunks = arrow_view(dataset)[name]
    return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()  # which copies even a single chunk


def column(examples: Examples, name: str) -> list[Any]:
    """Return one field of every example, which must be present in all of them."""
    if hasattr(examples, "with_format"):
        # Reading the column from Arrow is many times faster than building rows.
        return arrow_column(examples, name).to_pylist()

    return [example[name] for example in examples]


def answers_of(example: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the texts and the starts of the answers of an example, in any form of ``answer_columns``."""
    answers = example["answers"]
    if type(answers) is dict and type(starts := answers.get("answer_start")) is list:
        texts = answers.get("text")
        if type(texts) is list and len(texts) == len(starts) and all(texts) and {*map(type, starts)} <= {int}:
            return texts, starts
    try:
        return answer_columns(answers)
    except InvalidRecord as error:
        raise InputError(f"Example {example.get('id')!r}: {error} Correct its `answers`.") from error


def answer_texts(example: Mapping[str, Any]) -> list[str]:
    """Return the texts of the answers of an example, whose starts may be missing, in any form of ``texts_of``."""
    try:
        return texts_of(example["answers"])
    except InvalidRecord as error:
        raise InputError(f"Example {example.get('id')!r}: {error} Correct its `answers`.") from error


def target_of(example: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the answers of the annotators of an example; ``None`` if it has none, or another field of that name."""
    target = example.get("target")
    return target if isinstance(target, Mapping) and "start_positions" in target else None


def contexts_of(example: Mapping[str, Any]) -> Sequence[str]:
    """Return the contexts of an example as a sequence, even if there is only one."""
    context = example["context"]
    return [context] if isinstance(context, str) else context


def has_unanswerable(examples: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether any question has no answer, so that SQuAD v2.0 scoring applies."""
    return any(not answer_texts(example) for example in examples)


def join_contexts(example: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the example with its contexts joined into one string and its answer offsets shifted accordingly."""
    if isinstance(example["context"], str):
        return example
    contexts = contexts_of(example)
    starts = context_starts(contexts)
    texts, answer_starts = answers_of(example)
    answers = {"text": texts, "answer_start": answer_starts}
    if (target := target_of(example)) is not None:
        # `answers` lists the spans of `target` in order, without the annotators who marked none.
        shifts = [
            starts[max(passage, 0)]
            for start, passage in zip(target["start_positions"], target["passage_indices"], strict=True)
            if start >= 0
        ]
        shifted = [shift + start for shift, start in zip(shifts, answer_starts, strict=True)]
        answers = {"text": texts, "answer_start": shifted}
    return {**example, "context": _SEPARATOR.join(contexts), "answers": answers}


def context_starts(contexts: Sequence[str]) -> list[int]:
    """Return the character at which each context starts in the joined string of ``join_contexts``."""
    return list(accumulate((len(context) + len(_SEPARATOR) for context in contexts[:-1]), initial=0))
