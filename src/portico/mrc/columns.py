from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, TypeAlias, cast

Examples: TypeAlias = Sequence[Mapping[str, Any]]
"""Questions with their contexts: a list of mappings, or a ``datasets.Dataset``."""


def arrow_column(dataset: Any, name: str) -> Any:
    """Return one field of a ``datasets.Dataset`` as an Arrow array of its rows."""
    view = copy(dataset)  # `with_format` copies what describes the data set in depth, which costs more than a column
    view.set_format("arrow", columns=[name])
    return view[:][name].combine_chunks()


def column(examples: Examples, name: str) -> list[Any]:
    """Return one field of every example.

    Args:
        examples: A list of mappings, or a ``datasets.Dataset``, whose columns are read whole from Arrow's memory
            because that is many times faster than building its rows.
        name: The field, present in every example.
    """
    if hasattr(examples, "with_format"):
        values: list[Any] = arrow_column(examples, name).to_pylist()
        return values
    if hasattr(examples, "column_names"):
        # Iterating over the column would decode it row by row; a slice takes it at once.
        return list(cast(Mapping[str, Any], examples)[name][:])
    return [example[name] for example in examples]


def contexts_of(example: Mapping[str, Any]) -> Sequence[str]:
    """Return the contexts of an example, which has a text or a list of texts for them."""
    context = example["context"]
    return [context] if isinstance(context, str) else context
