"""What the parsers of all formats share: checks of a record, and annotations.

``read_key``, ``read_objects`` and the functions named ``check_...`` return a value of the expected type, or raise
``InvalidRecord``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from portico.data.defects import Defects, InvalidRecord, Placed, describe, shorten
from portico.mrc.datasets.examples import Example
from portico.mrc.datasets.values import parse_int

RawRecord: TypeAlias = Mapping[str, Any]
"""A record as its file holds it, not yet validated."""

Span: TypeAlias = tuple[int, int]
NO_SPAN: Span = (-1, -1)
_OF_A_QUESTION = ("question", "question_text", "answers")


def children(parent: object, key: str, place: str, defects: Defects, form: str) -> Iterable[tuple[int, Any]]:
    """Return the numbered entries of the list ``key`` in an object; if it is missing, add a defect and return none."""
    listed = parent.get(key) if isinstance(parent, Mapping) else None
    if isinstance(listed, list):
        return enumerate(listed, start=1)
    found = parent if listed is None else listed
    problem = f"not {form}: expected a list `{key}`; got {describe(found)}."
    defects.add(place, problem, num_records=num_lost_questions(found))
    return ()


def num_lost_questions(value: object) -> int:
    """Return how many questions are lost with a JSON value: those at any depth in it, and at least 1."""
    count = 0
    inner = [value]
    while inner:
        item = inner.pop()
        if isinstance(item, Mapping) and not item.keys().isdisjoint(_OF_A_QUESTION):
            count += 1
        elif isinstance(item, Mapping | list):
            inner.extend(item.values() if isinstance(item, Mapping) else item)
    return max(count, 1)


def questions_of_passage(
    place: str, passage: object, defects: Defects, form: str, **shared: object
) -> Iterator[Placed]:
    """Yield the ``qas`` of a passage with the context and other values that they share, not yet validated."""
    more = dict(shared)
    if isinstance(passage, Mapping) and "context" in passage:
        more["context"] = passage["context"]
    for number, question in children(passage, "qas", place, defects, form):
        raw = {**question, **more} if isinstance(question, Mapping) else question
        yield f"{place}, question {number}", raw


def _one_question(place: str, entry: object, defects: Defects) -> Iterator[Placed]:
    yield place, entry


@dataclass(frozen=True)
class Format:
    """How to parse the entries of one format: ``description`` has their fields, ``is_like`` recognises one.

    ``questions`` yields the questions of an entry, not yet validated, and ``example`` parses one of them or raises
    ``InvalidRecord``. By default every entry is one question. The fields of ``unanswered`` complete a record whose
    answers are not read.
    """

    description: str
    is_like: Callable[[RawRecord], bool]
    example: Callable[[RawRecord], Example]
    questions: Callable[[str, object, Defects], Iterator[Placed]] = _one_question
    unanswered: Mapping[str, Any] = field(default_factory=dict)


def read_key(raw: object, key: str, kind: str) -> Any:
    """Return a field of an object; ``kind``, as in ``"a SQuAD question has id, context"``, is for the message."""
    if not isinstance(raw, Mapping):
        raise InvalidRecord(f"a record must be a JSON object; got {describe(raw)}.")
    if key not in raw:
        raise InvalidRecord(f"`{key}` is missing: {kind}; got {describe(raw)}.")
    return raw[key]


def read_objects(value: object, key: str) -> list[Mapping[str, Any]]:
    """Return a list of objects, also from an object of lists, which is how ``datasets`` stores it."""
    if isinstance(value, Mapping) and all(isinstance(column, list) for column in value.values()):
        if len({len(column) for column in value.values()}) > 1:
            raise InvalidRecord(f"the lists in `{key}` must have the same length; got {describe(value)}.")
        return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        return value
    raise InvalidRecord(f"`{key}` must be a list of objects; got {describe(value)}.")


def check_text(key: str, value: object) -> str:
    """Return ``value``, a string of valid Unicode that is not blank."""
    if not isinstance(value, str):
        raise InvalidRecord(f"`{key}` must be a string; got {describe(value)}.")
    if not value.strip():
        raise InvalidRecord(f"`{key}` is empty.")
    return _encodable(key, value)


def _encodable(key: str, text: str) -> str:
    try:
        text.encode()  # JSON can express half a surrogate pair, which tokenizers and output files reject
    except UnicodeEncodeError as error:
        raise InvalidRecord(
            f"`{key}` is not valid Unicode: half of a surrogate pair at character {error.start}."
        ) from error
    return text


def check_label(key: str, value: object) -> str:
    """Return a label of the question, such as a title, as a string; a number is converted, and null is ``""``."""
    if value is not None and not isinstance(value, str | int | float):
        raise InvalidRecord(f"`{key}` must be a string; got {describe(value)}.")
    return _encodable(key, str(value or ""))


def check_id(key: str, value: object) -> str:
    """Return an identifier, a string or an integer, as a string."""
    if not isinstance(value, str):
        value = parse_int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidRecord(f"`{key}` must be a string or an integer; got {describe(value)}.")
    return _encodable(key, str(value))


def check_position(value: object, key: str) -> int:
    """Return the place where something starts or ends, an integer."""
    value = parse_int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRecord(f"`{key}` must be an int; got {describe(value)}.")
    return value


def check_span(span: Span, length: int, key: str) -> Span:
    """Return a span, not empty, of a string of ``length`` characters, or (-1, -1) if either end is -1."""
    if -1 in [check_position(place, key) for place in span]:
        return NO_SPAN
    if not 0 <= span[0] < span[1] <= length:
        shown = " to ".join(map(shorten, span))
        raise InvalidRecord(f"`{key}` is {shown}, but the context has {length} characters.")
    return span


def check_passage(index: object, num_passages: int, key: str) -> int:
    """Return the index of a passage, -1 for none."""
    index = parse_int(index)
    if isinstance(index, bool) or not isinstance(index, int) or not -1 <= index < num_passages:
        raise InvalidRecord(f"`{key}` must be an int from -1 to {num_passages - 1}; got {describe(index)}.")
    return index


def check_yes_no(value: object) -> str:
    """Return ``"YES"``, ``"NO"`` or ``"NONE"``, also from Natural Questions' 1 (yes), 0 (no) and -1 (none)."""
    value = parse_int(value)
    words: Mapping[object, str] = {-1: "NONE", 0: "NO", 1: "YES"}  # the ClassLabel of the hub's Natural Questions
    word = words.get(value, value) if not isinstance(value, bool) else value
    if isinstance(word, str) and word.upper() in words.values():
        return word.upper()
    raise InvalidRecord(f"`yes_no_answer` must be YES, NO or NONE; got {describe(value)}.")


@dataclass(frozen=True)
class Annotation:
    """The answer of one annotator, in the terms of PrimeQA's base schema."""

    span: Span = NO_SPAN
    """Characters ``[start, end)`` in its context."""
    passage: int = -1
    """Index of the passage candidate (or, of several contexts, the context) with the answer, -1 if there is none."""
    yes_no: str = "NONE"
    """``"YES"``, ``"NO"`` or ``"NONE"``."""


def build_target(annotations: Sequence[Annotation]) -> dict[str, list[Any]]:
    """Return ``target`` of the base schema: a list per field, with one entry per annotator."""
    return {
        **build_candidates([annotation.span for annotation in annotations]),
        "passage_indices": [annotation.passage for annotation in annotations],
        "yes_no_answer": [annotation.yes_no for annotation in annotations],
    }


def build_candidates(spans: Sequence[Span]) -> dict[str, list[int]]:
    """Return ``passage_candidates`` of the base schema: where each passage starts and ends."""
    return {"start_positions": [start for start, _ in spans], "end_positions": [end for _, end in spans]}


def build_answers(context: str, annotations: Sequence[Annotation]) -> dict[str, list[Any]]:
    """Return ``answers`` of SQuAD: the distinct spans, in the order of the annotators."""
    # Annotators often agree; SQuAD's metrics take the maximum over answers, so duplicates add nothing.
    spans = dict.fromkeys(annotation.span for annotation in annotations if annotation.span[0] >= 0)
    return {"text": [context[start:end] for start, end in spans], "answer_start": [start for start, _ in spans]}
