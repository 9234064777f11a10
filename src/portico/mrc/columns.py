from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

Examples: TypeAlias = Sequence[Mapping[str, Any]]
"""Questions with their contexts: a list of mappings, or a ``datasets.Dataset``."""


def column(examples: Examples, name: str) -> list[Any]:
    """Return one field of every example.

    Args:
        examples: A list of mappings, or a ``datasets.Dataset``, whose columns are read whole because that is many
            times faster than building its rows.
        name: The field, present in every example.
    """
    if hasattr(examples, "column_names"):
        # Iterating over the column would decode it row by row; a slice takes it at once.
        return list(cast(Mapping[str, Any], examples)[name][:])
    return [example[name] for example in examples]
