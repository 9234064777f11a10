from collections.abc import Mapping
from typing import Any

from portico.mrc.preprocessors.adapting import adapted
from portico.mrc.preprocessors.base import BasePreProcessor
from portico.mrc.readers.annotations import Annotation, candidates, target
from portico.mrc.readers.mrqa import char_spans
from portico.mrc.readers.records import as_objects


class MRQAPreprocessor(BasePreProcessor):
    """Makes features of MRQA as the hub has it.

    Of every detected answer the first place counts. As in PrimeQA the end is the last character of the answer, not
    the one after it; :func:`~portico.mrc.readers.read_examples` reads the same data with ends beyond.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
    """

    def adapt_dataset(self, dataset: Any, is_train: bool) -> Any:
        """Return the examples in the base schema.

        Raises:
            InputError: If a column is missing.
        """
        single = self._single_context_multiple_passages
        removed = ("qid", "answers", "detected_answers", "context_tokens", "question_tokens", "subset")
        adapted_dataset = adapted(
            dataset,
            _with_passage if single else _base_columns,
            with_target=True,
            single_context=single,
            removed=removed,
            **self._map_options,
        )
        return super().adapt_dataset(adapted_dataset, is_train)


def _base_columns(raw: Mapping[str, Any]) -> dict[str, Any]:
    spans = [char_spans(answer)[0] for answer in as_objects(raw["detected_answers"], "detected_answers")]
    return {
        "example_id": raw["qid"],
        "question": raw["question"],
        "context": [raw["context"]],
        "target": target([Annotation(span, 0) for span in spans] or [Annotation()]),
    }


def _with_passage(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {**_base_columns(raw), "passage_candidates": candidates([(0, len(raw["context"]))])}
