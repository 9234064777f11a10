"""References in PrimeQA's form: what each annotator says of a question."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from portico.errors import InputError

Record: TypeAlias = Mapping[str, Any]

Annotated: TypeAlias = Record | Sequence[Record]
"""One record an annotator, or one record whose values are lists with one entry an annotator."""


def annotators_of(reference: Annotated) -> list[Record]:
    """Return what each annotator says, as one record an annotator.

    Args:
        reference: Such records already, or one record of lists; single values in it hold for all annotators. A record
            without lists is that of the only annotator.
    """
    if not isinstance(reference, Mapping):
        return list(reference)
    lists = {name: values for name, values in reference.items() if _is_list(values)}
    if not lists:
        return [reference]
    single = {name: value for name, value in reference.items() if name not in lists}
    return [{**single, **dict(zip(lists, row, strict=True))} for row in zip(*lists.values(), strict=True)]


def shared_value(reference: Annotated, annotators: list[Record], name: str) -> Any:
    """Return what all annotators have in common; a question without any still has its single values."""
    if annotators:
        return annotators[0][name]
    if isinstance(reference, Mapping) and not _is_list(reference[name]):
        return reference[name]
    raise InputError(
        f"A reference without annotators has no `{name}`; give `{{'example_id': ..., 'language': ..., 'annotations': "
        "[]}` for a question that nobody annotated."
    )


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
