"""The base schema as types of ``datasets``."""

from collections.abc import Mapping
from typing import Any

from portico.errors import InputError
from portico.mrc.readers.optional_datasets import import_datasets


def base_schema(*, is_train: bool, single_context: bool, adapted: bool) -> dict[str, Any]:
    """Return the columns of the base schema and their types.

    Args:
        is_train: Whether answers are needed.
        single_context: Whether passages are parts of one context.
        adapted: Whether identifier and language are needed, which adapting provides.
    """
    datasets = import_datasets("A preprocessor takes a datasets.Dataset")
    text, texts = datasets.Value("string"), datasets.List(datasets.Value("string"))
    integers = datasets.List(datasets.Value("int64"))
    columns = {"question": text, "context": texts}
    if adapted:
        columns |= {"example_id": text, "language": text}
    if is_train:
        positions = dict.fromkeys(("start_positions", "end_positions", "passage_indices"), integers)
        columns["target"] = {**positions, "yes_no_answer": texts}
    if is_train and single_context:
        columns["passage_candidates"] = {"start_positions": integers, "end_positions": integers}
    return columns


def check_schema(dataset: Any, columns: Mapping[str, Any]) -> None:
    """Refuse a data set that lacks a column or has one of another type.

    Raises:
        InputError: Names the column, what came and what is allowed.
    """
    for name, wanted in columns.items():
        if name not in dataset.features:
            raise InputError(
                f"The examples have no column {name!r}, only {', '.join(map(repr, dataset.column_names))}; give it, "
                f"of type {wanted}, or use the preprocessor of the data set's own schema."
            )
        if dataset.features[name] != wanted:
            raise InputError(
                f"The column {name!r} of the examples is of type {dataset.features[name]}, but must be {wanted}; cast "
                "it with `Dataset.cast_column`."
            )
