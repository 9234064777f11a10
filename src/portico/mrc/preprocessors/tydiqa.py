from collections.abc import Mapping
from typing import Any

from portico.mrc.preprocessors.adapting import adapted
from portico.mrc.preprocessors.single_context import SingleContextPreProcessor
from portico.mrc.readers.annotations import candidates, target
from portico.mrc.readers.byte_offsets import ByteOffsets
from portico.mrc.readers.tydi import passage_spans, read_annotations


class TyDiQAPreprocessor(SingleContextPreProcessor):
    """Makes features of TyDi QA's primary task as the hub has it, with characters in place of UTF-8 bytes.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
    """

    def adapt_dataset(self, dataset: Any, is_train: bool) -> Any:
        """Return the examples in the base schema; ``document_plaintext`` is kept for metrics.

        Raises:
            InputError: If a column is missing.
        """
        removed = ("question_text", "annotations", "passage_answer_candidates")
        adapted_dataset = adapted(
            dataset, _base_columns, with_target=True, single_context=True, removed=removed, **self._map_options
        )
        return super().adapt_dataset(adapted_dataset, is_train)


class TyDiQAGooglePreprocessor(TyDiQAPreprocessor):
    """Makes features of TyDi QA as Google distributes it, also the input of list questions.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
    """


def _base_columns(raw: Mapping[str, Any]) -> dict[str, Any]:
    document = raw["document_plaintext"]
    offsets = ByteOffsets(document)
    identifier = {"example_id": str(raw["example_id"])} if "example_id" in raw else {}
    return {
        **identifier,
        "question": raw["question_text"],
        "context": [document],
        "target": target(read_annotations(raw["annotations"], offsets)),
        "passage_candidates": candidates(passage_spans(raw["passage_answer_candidates"], offsets)),
    }
