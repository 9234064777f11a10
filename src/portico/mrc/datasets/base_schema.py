"""PrimeQA's base schema: several contexts per question, positions in characters, one entry per annotator."""

from collections.abc import Mapping, Sequence
from typing import Any

from portico.mrc.datasets.examples import Example
from portico.mrc.datasets.records import (
    Annotation,
    Format,
    InvalidRecord,
    as_answers,
    as_target,
    checked_id,
    checked_passage,
    checked_span,
    checked_text,
    checked_yes_no,
    describe,
    required,
)

_KIND = "a record of the base schema has question, context, and optionally example_id, language, target"
_PARSED = frozenset({"question", "context", "example_id", "language", "target"})


def example(raw: Any) -> Example:
    """Parse a record; a single context becomes a string, several stay a list."""
    question, contexts = (required(raw, key, _KIND) for key in ("question", "context"))
    contexts = [contexts] if isinstance(contexts, str) else contexts
    if not isinstance(contexts, list) or not contexts:
        raise InvalidRecord(f"`context` must be a list of one or more strings; got {describe(contexts)}.")
    contexts = [checked_text("context", context) for context in contexts]
    identifier = {"id": checked_id("example_id", raw["example_id"])} if raw.get("example_id") is not None else {}
    record = {
        **identifier,
        "title": "",
        "context": contexts[0] if len(contexts) == 1 else contexts,
        "question": checked_text("question", question),
        "answers": {"text": [], "answer_start": []},
        "language": str(raw.get("language") or "UNKNOWN"),
        **{key: value for key, value in raw.items() if key not in _PARSED},
    }
    if raw.get("target") is not None:
        annotations = _annotations(raw["target"], contexts, raw.get("passage_candidates"))
        record["target"] = as_target(annotations)
        record["answers"] = _answers(contexts, annotations)
    return record


def _annotations(raw: Any, contexts: Sequence[str], candidates: Mapping[str, Any] | None) -> list[Annotation]:
    columns = [required(raw, key, "`target` has four lists of the same length") for key in as_target([])]
    if not all(isinstance(column, list) for column in columns) or len({len(column) for column in columns}) > 1:
        raise InvalidRecord(f"`target` must hold four lists of the same length; got {describe(raw)}.")
    # Passages are parts of the only context if there are candidates, and the contexts themselves otherwise.
    num_passages = len(contexts) if candidates is None else len(candidates["start_positions"])
    annotations = []
    for start, end, passage, yes_no in zip(*columns, strict=True):
        passage = checked_passage(passage, num_passages, "passage_indices")
        context = contexts[max(passage, 0) if candidates is None else 0]
        span = checked_span((start, end), len(context), "target")
        annotations.append(Annotation(span, passage, checked_yes_no(yes_no)))
    return annotations


def _answers(contexts: Sequence[str], annotations: Sequence[Annotation]) -> dict[str, list[Any]]:
    if len(contexts) == 1:
        return as_answers(contexts[0], annotations)
    each = [as_answers(contexts[max(one.passage, 0)], [one]) for one in annotations]
    return {key: [value for answers in each for value in answers[key]] for key in ("text", "answer_start")}


FORMAT = Format(
    "question, context (a list), example_id, language, target",
    lambda entry: (
        "question" in entry and (isinstance(entry.get("context"), list) or {"context", "target"} <= set(entry))
    ),
    example,
)
