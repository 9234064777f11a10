from collections.abc import Iterator, Mapping
from typing import Any

from portico.mrc.preprocessors.adapting import adapted
from portico.mrc.preprocessors.single_context import SingleContextPreProcessor
from portico.mrc.readers.annotations import Annotation, candidates, target
from portico.mrc.readers.defects import Defects
from portico.mrc.readers.documents import numbered
from portico.mrc.readers.optional_datasets import import_datasets
from portico.mrc.readers.squad import example, questions


class SQUADPreprocessor(SingleContextPreProcessor):
    """Makes features of SQuAD, flat as on the hub or nested as in the original file (a column ``data``).

    The only passage is the whole context. Questions without an answer have a null target.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
    """

    def adapt_dataset(self, dataset: Any, is_train: bool) -> Any:
        """Return the examples in the base schema, with the texts of their answers as ``answer_text``.

        Raises:
            InputError: If a record is no SQuAD question.
        """
        if "data" in dataset.column_names:
            dataset = import_datasets("A preprocessor takes a datasets.Dataset").Dataset.from_list(
                list(_flattened(dataset))
            )
        removed = ("id", "answers", "is_impossible", "plausible_answers", "title")
        return super().adapt_dataset(
            adapted(
                dataset, _base_columns, with_target=True, single_context=True, removed=removed, **self._map_options
            ),
            is_train,
        )


def _flattened(dataset: Any) -> Iterator[Mapping[str, Any]]:
    defects = Defects("The data set", skip_invalid=False)
    for place, row in numbered(dataset):
        articles = row["data"] if isinstance(row["data"], list) else [row["data"]]
        for article in articles:
            for _, question in questions(place, article, defects):
                record = example(question)
                yield {key: record[key] for key in ("id", "context", "question", "answers")}


def _base_columns(raw: Mapping[str, Any]) -> dict[str, Any]:
    record = example(raw)
    answers = record["answers"]
    spans = [(start, start + len(text)) for text, start in zip(*answers.values(), strict=True)]
    return {
        "example_id": record["id"],
        "question": record["question"],
        "context": [record["context"]],
        "target": target([Annotation(span, 0) for span in spans] or [Annotation()]),
        "passage_candidates": candidates([(0, len(record["context"]))]),
        "answer_text": answers["text"],
    }
