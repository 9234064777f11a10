from collections.abc import Mapping
from functools import partial
from typing import Any

from portico.mrc.preprocessors.adapting import adapted
from portico.mrc.preprocessors.single_context import SingleContextPreProcessor
from portico.mrc.readers.annotations import NO_SPAN, Annotation, Span, candidates, checked_yes_no, target
from portico.mrc.readers.natural_questions import passage_spans as passages_in_chars
from portico.mrc.readers.natural_questions import question_text, read_annotations, read_document
from portico.mrc.readers.records import as_objects


class NaturalQuestionsPreProcessor(SingleContextPreProcessor):
    """Makes features of Natural Questions as the hub has it; the context is the document's tokens, joined by blanks.

    To train on, answers and passages are characters of the context, and as in PrimeQA only a short answer counts. To
    evaluate, they are bytes of the page, as the metric takes them.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
    """

    def adapt_dataset(self, dataset: Any, is_train: bool) -> Any:
        """Return the examples in the base schema; ``document`` is kept, by which answers are found in the page.

        Raises:
            InputError: If a column is missing.
        """
        adapted_dataset = adapted(
            dataset,
            partial(_base_columns, is_train=is_train),
            with_target=True,
            single_context=True,
            removed=("id", "annotations", "long_answer_candidates"),
            **self._map_options,
        )
        return super().adapt_dataset(adapted_dataset, is_train)


def _base_columns(raw: Mapping[str, Any], *, is_train: bool) -> dict[str, Any]:
    document = read_document(raw)
    if is_train:
        passages = passages_in_chars(raw, document)
        said = [
            one if one.span != NO_SPAN else Annotation(yes_no=one.yes_no)
            for one in read_annotations(raw, document, len(passages))
        ]
    else:
        passages = [
            (row["start_byte"], row["end_byte"])
            for row in as_objects(raw["long_answer_candidates"], "long_answer_candidates")
        ]
        said = [_in_bytes(one) for one in as_objects(raw["annotations"], "annotations")]
    return {
        "example_id": str(raw["id"] if "id" in raw else raw["example_id"]),
        "question": question_text(raw),
        "context": [document.context],
        "language": "english",
        "target": target(said),
        "passage_candidates": candidates(passages),
    }


def _in_bytes(annotation: Mapping[str, Any]) -> Annotation:
    short = as_objects(annotation["short_answers"], "short_answers")
    span: Span = (short[0]["start_byte"], short[0]["end_byte"]) if short else NO_SPAN
    passage = annotation["long_answer"]["candidate_index"]
    return Annotation(span, passage, checked_yes_no(annotation["yes_no_answer"]))
