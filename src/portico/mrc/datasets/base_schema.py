"""PrimeQA's base schema: several contexts per question, positions in characters, one entry per annotator."""

from collections.abc import Sequence
from typing import Any

from portico.data.defects import InvalidRecord, describe
from portico.mrc.datasets import records, squad
from portico.mrc.datasets.examples import Example, contexts_of, target_of

_KIND = "a record of the base schema has question, context, and optionally example_id, language, target"
_ID_KEYS = ("example_id", "id", "qid")
_PARSED = frozenset({"target", *_ID_KEYS})


def question(raw: records.RawRecord) -> Example:
    """Parse the question and the contexts of a record; a single context is a string, several are a list."""
    text, contexts = (records.read_key(raw, key, _KIND) for key in ("question", "context"))
    contexts = [contexts] if isinstance(contexts, str) else contexts
    if not isinstance(contexts, list) or not contexts:
        raise InvalidRecord(f"`context` must be a list of one or more strings; got {describe(contexts)}.")
    contexts = [records.check_text("context", context) for context in contexts]
    key = next((key for key in _ID_KEYS if raw.get(key) is not None), None)
    return {
        **({} if key is None else {"id": records.check_id(key, raw[key])}),
        "question": records.check_text("question", text),
        "context": contexts[0] if len(contexts) == 1 else contexts,
    }


def example(raw: records.RawRecord) -> Example:
    """Parse a record; a single context becomes a string, several stay a list."""
    asked = question(raw)
    contexts = contexts_of(asked)
    record = {
        **asked,
        "title": records.check_label("title", raw.get("title")),
        "answers": {"text": [], "answer_start": []},
        "language": records.check_label("language", raw.get("language")) or "UNKNOWN",
    }
    candidates = None
    if raw.get("passage_candidates") is not None:
        candidates = _candidates(raw["passage_candidates"])
        record["passage_candidates"] = records.build_candidates(candidates)
    if (target := target_of(raw)) is not None:
        annotations = _annotations(target, contexts, candidates)
        record["target"] = records.build_target(annotations)
        record["answers"] = _answers(contexts, annotations)
    elif raw.get("answers") is not None:
        texts, starts = squad.check_answers(raw).values()
        texts = [records.check_text("text", text) for text in texts]
        starts = [records.check_position(start, "answer_start") for start in starts]
        record["answers"] = {"text": texts, "answer_start": starts}
    return {**{key: value for key, value in raw.items() if key not in _PARSED}, **record}


def _candidates(raw: object) -> list[records.Span]:
    rows = records.read_objects(raw, "passage_candidates")
    start, end = ([records.check_position(row[key], key) for row in rows] for key in records.build_candidates([]))
    return list(zip(start, end, strict=True))


def _annotations(
    raw: object, contexts: Sequence[str], candidates: Sequence[records.Span] | None
) -> list[records.Annotation]:
    columns = [
        records.read_key(raw, key, "`target` has four lists of the same length") for key in records.build_target([])
    ]
    if not all(isinstance(column, list) for column in columns) or len({len(column) for column in columns}) > 1:
        raise InvalidRecord(f"`target` must hold four lists of the same length; got {describe(raw)}.")
    # Passages are parts of the only context if there are candidates, and the contexts themselves otherwise.
    num_passages = len(contexts) if candidates is None else len(candidates)
    annotations = []
    for start, end, passage, yes_no in zip(*columns, strict=True):
        passage = records.check_passage(passage, num_passages, "passage_indices")
        context = contexts[max(passage, 0) if candidates is None else 0]
        span = records.check_span((start, end), len(context), "target")
        annotations.append(records.Annotation(span, passage, records.check_yes_no(yes_no)))
    return annotations


def _answers(contexts: Sequence[str], annotations: Sequence[records.Annotation]) -> dict[str, list[Any]]:
    if len(contexts) == 1:
        return records.build_answers(contexts[0], annotations)
    each = [records.build_answers(contexts[max(annotation.passage, 0)], [annotation]) for annotation in annotations]
    return {key: [value for answers in each for value in answers[key]] for key in ("text", "answer_start")}


FORMAT = records.Format(
    "question, context (a list), example_id, language, target",
    lambda entry: (
        "question" in entry
        and (isinstance(entry.get("context"), list) or ("context" in entry and target_of(entry) is not None))
    ),
    example,
)
