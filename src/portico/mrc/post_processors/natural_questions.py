"""Answers in bytes of the HTML page, as the metric of Natural Questions takes them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from portico.errors import InputError
from portico.mrc.answers.span_records import SpanRecord
from portico.mrc.datasets.examples import Examples
from portico.mrc.post_processors.extractive import ExtractivePostProcessor


class NaturalQuestionsPostProcessor(ExtractivePostProcessor):
    """Maps spans of the joined tokens back to bytes of the page, and finds the passage that holds them there.

    Examples have the document's tokens with their bytes (``document.tokens``), and targets and ``passage_candidates``
    in bytes, as Natural Questions has them.

    Args:
        *args: As in :class:`~portico.mrc.post_processors.extractive.ExtractivePostProcessor`.
        **kwargs: As in :class:`~portico.mrc.post_processors.extractive.ExtractivePostProcessor`.
    """

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return the gold answers in bytes, a list an annotator under each key, one entry an example."""
        references = super().prepare_examples_as_references(examples)
        return [
            {key: value for key, value in reference.items() if key not in ("document_plaintext", "question")}
            for reference in references
        ]

    def prepare_predictions(self, examples: Examples, processed: dict[str, list[SpanRecord]]) -> list[dict[str, Any]]:
        """Return the best span of every example in bytes."""
        predictions = super().prepare_predictions(examples, processed)
        return [{**one, **_in_bytes(one, example)} for one, example in zip(predictions, examples, strict=True)]


def _in_bytes(prediction: Mapping[str, Any], example: Mapping[str, Any]) -> dict[str, int]:
    start, end = prediction["start_position"], prediction["end_position"]
    if start < 0:
        return {"start_position": -1, "end_position": -1, "passage_index": -1}
    tokens = _by_column(example["document"]["tokens"])
    token_starts = _token_starts(tokens["token"], example)
    first_byte = tokens["start_byte"][bisect_right(token_starts, start) - 1]
    end_byte = tokens["end_byte"][bisect_right(token_starts, end - 1) - 1]
    passages = example["passage_candidates"]
    spans = zip(passages["start_positions"], passages["end_positions"], strict=True)
    holding = [index for index, (begin, stop) in enumerate(spans) if begin <= first_byte and end_byte <= stop]
    return {"start_position": first_byte, "end_position": end_byte, "passage_index": next(iter(holding), -1)}


def _by_column(tokens: Any) -> Mapping[str, Sequence[Any]]:
    """Return the tokens as an object of lists, as which the hub has them, also from a list of objects."""
    if isinstance(tokens, Mapping):
        return tokens
    return {name: [token[name] for token in tokens] for name in ("token", "start_byte", "end_byte")}


def _token_starts(tokens: Sequence[str], example: Mapping[str, Any]) -> list[int]:
    context = example["context"] if isinstance(example["context"], str) else example["context"][0]
    if len(context) != sum(map(len, tokens)) + len(tokens) - 1:
        raise InputError(
            f"The context of example {example['example_id']!r} is not its document's tokens with one blank between "
            "two, so that answers cannot be found in the page; make the context of all tokens."
        )
    return list(accumulate((len(token) + 1 for token in tokens), initial=0))[:-1]
