"""Records of a source schema to the base schema, record by record."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from portico.mrc.preprocessors.schema import base_schema
from portico.mrc.readers.optional_datasets import import_datasets


def adapted(
    dataset: Any,
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    with_target: bool,
    single_context: bool,
    removed: Iterable[str],
    **options: Any,
) -> Any:
    """Return the data set with the columns of the base schema.

    Args:
        dataset: A ``datasets.Dataset``.
        adapt: Makes the columns of one record.
        with_target: Whether they include ``target``.
        single_context: Whether they include ``passage_candidates``.
        removed: Columns of the source that are not kept.
        **options: Options of ``Dataset.map``.
    """
    datasets = import_datasets("A preprocessor takes a datasets.Dataset")
    made = base_schema(is_train=with_target, single_context=single_context, adapted=False)
    if len(dataset):
        first = adapt(dataset[0])
        text = datasets.Value("string")
        made |= {name: text for name in ("example_id", "language") if name in first}
        made |= {"answer_text": datasets.List(text)} if "answer_text" in first else {}
    gone = [name for name in removed if name in dataset.column_names]
    kept = {name: kind for name, kind in dataset.features.items() if name not in gone}
    return dataset.map(
        adapt, remove_columns=gone, features=datasets.Features({**kept, **made}), desc="Adapting examples", **options
    )


def with_identity(dataset: Any) -> Any:
    """Return the data set with ``example_id`` and ``language``, made up (always alike) where they are missing."""
    if "example_id" not in dataset.column_names:
        questions = enumerate(dataset["question"])
        made_up = [str(uuid.uuid5(uuid.NAMESPACE_OID, f"{number} {question}")) for number, question in questions]
        dataset = dataset.add_column("example_id", made_up)
    if "language" not in dataset.column_names:
        dataset = dataset.add_column("language", ["UNKNOWN"] * len(dataset))
    return dataset
