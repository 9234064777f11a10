"""Records for the pipeline that answers boolean questions."""

from portico.mrc.answers.span_records import SpanRecord
from portico.mrc.datasets.examples import Examples
from portico.mrc.post_processors.extractive import ExtractivePostProcessor


class ExtractivePipelinePostProcessor(ExtractivePostProcessor):
    """Adds question, language and the text of the passage to each record.

    Args:
        *args: As in :class:`~portico.mrc.post_processors.extractive.ExtractivePostProcessor`.
        **kwargs: As in :class:`~portico.mrc.post_processors.extractive.ExtractivePostProcessor`.
    """

    def completed(self, examples: Examples, records: dict[str, list[SpanRecord]]) -> dict[str, list[SpanRecord]]:
        """Add what the classifiers of questions and answers read."""
        records = super().completed(examples, records)
        for example in examples:
            contexts = [example["context"]] if isinstance(example["context"], str) else example["context"]
            passages = example.get("passage_candidates") if self._single_context_multiple_passages else None
            for record in records[example["example_id"]]:
                index = record["passage_index"]
                if index < 0:
                    text = record["span_answer_text"]
                elif passages is None:
                    text = contexts[index]
                else:
                    text = contexts[0][passages["start_positions"][index] : passages["end_positions"][index]]
                record["question"] = example["question"]
                record["language"] = example.get("language", "UNKNOWN")
                record["passage_answer_text"] = text
        return records
