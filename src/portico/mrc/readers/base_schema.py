"""PrimeQA's base schema: several contexts a question, positions in characters, one entry an annotator."""

from collections.abc import Mapping, Sequence
from typing import Any

from portico.mrc.readers.annotations import (
    Annotation,
    checked_passage,
    checked_span,
    checked_yes_no,
    span_answers,
    target,
)
from portico.mrc.readers.defects import InvalidRecord
from portico.mrc.readers.records import Example, checked_id, checked_text, required
from portico.mrc.readers.wording import found

_WHAT = "a record of the base schema; it has question, context, perhaps example_id, language, target"
_READ = frozenset({"question", "context", "example_id", "language", "target"})


def is_base(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry looks like the base schema."""
    return "question" in entry and (isinstance(entry.get("context"), list) or {"context", "target"} <= set(entry))


def example(raw: Any) -> Example:
    """Return the record; a single context becomes a text, several stay a list.

    Raises:
        InvalidRecord: If a field is missing or wrong.
    """
    question, contexts = (required(raw, key, _WHAT) for key in ("question", "context"))
    contexts = [contexts] if isinstance(contexts, str) else contexts
    if not isinstance(contexts, list) or not contexts:
        raise InvalidRecord(f"`context` must be a list of one or more texts, but {found(contexts)}.")
    contexts = [checked_text("context", context) for context in contexts]
    identifier = {"id": checked_id("example_id", raw["example_id"])} if raw.get("example_id") is not None else {}
    record = {
        **identifier,
        "title": "",
        "context": contexts[0] if len(contexts) == 1 else contexts,
        "question": checked_text("question", question),
        "answers": {"text": [], "answer_start": []},
        "language": str(raw.get("language") or "UNKNOWN"),
        **{key: value for key, value in raw.items() if key not in _READ},
    }
    if raw.get("target") is not None:
        said = _annotations(raw["target"], contexts, single=raw.get("passage_candidates"))
        record["target"] = target(said)
        record["answers"] = _answers(contexts, said)
    return record


def _annotations(raw: Any, contexts: Sequence[str], *, single: Mapping[str, Any] | None) -> list[Annotation]:
    columns = [required(raw, key, "a target; it has four lists of one length") for key in target([])]
    if not all(isinstance(column, list) for column in columns) or len({len(column) for column in columns}) > 1:
        raise InvalidRecord(f"`target` must hold four lists of one length, one entry an annotator, but {found(raw)}.")
    num_passages = len(contexts) if single is None else len(single["start_positions"])
    said = []
    for start, end, passage, yes_no in zip(*columns, strict=True):
        passage = checked_passage(passage, num_passages, "passage_indices")
        context = contexts[max(passage, 0) if single is None else 0]
        span = checked_span((start, end), len(context), "target")
        said.append(Annotation(span, passage, checked_yes_no(yes_no)))
    return said


def _answers(contexts: Sequence[str], said: Sequence[Annotation]) -> dict[str, list[Any]]:
    if len(contexts) == 1:
        return span_answers(contexts[0], said)
    each = [span_answers(contexts[max(one.passage, 0)], [one]) for one in said]
    return {key: [value for answers in each for value in answers[key]] for key in ("text", "answer_start")}
