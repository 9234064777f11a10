"""Answers as SQuAD's metric takes them."""

from typing import Any

from portico.mrc.answers.span_records import SpanRecord
from portico.mrc.datasets.examples import Examples
from portico.mrc.post_processors.extractive import ExtractivePostProcessor


class SQUADPostProcessor(ExtractivePostProcessor):
    """Gives the text of the best span and the texts of the gold answers.

    Args:
        *args: As in :class:`~portico.mrc.post_processors.extractive.ExtractivePostProcessor`.
        **kwargs: As in :class:`~portico.mrc.post_processors.extractive.ExtractivePostProcessor`.
    """

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return ``{"id", "answers": {"text", "answer_start"}}`` of every example.

        Where an example has no ``answer_text``, its texts are those of its target positions.
        """
        return [
            {
                "id": example["example_id"],
                "answers": {"text": _gold_texts(example), "answer_start": example["target"]["start_positions"]},
            }
            for example in examples
        ]

    def prepare_predictions(self, examples: Examples, processed: dict[str, list[SpanRecord]]) -> list[dict[str, Any]]:
        """Return ``{"id", "prediction_text"}`` of every example; ``""`` where no span was found."""
        best = {example_id: records[0] for example_id, records in processed.items()}
        return [{"id": example_id, "prediction_text": _text(record)} for example_id, record in best.items()]


def _text(record: SpanRecord) -> str:
    return "" if record["span_answer"]["start_position"] < 0 else record["span_answer_text"]


def _gold_texts(example: Any) -> list[str]:
    if example.get("answer_text") is not None:
        return list(example["answer_text"])
    target = example["target"]
    contexts = [example["context"]] if isinstance(example["context"], str) else example["context"]
    spans = zip(target["start_positions"], target["end_positions"], target["passage_indices"], strict=True)
    # A passage index counts contexts where there are several, and passages of the only one otherwise.
    return [contexts[passage if len(contexts) > 1 else 0][start:end] for start, end, passage in spans if start >= 0]
