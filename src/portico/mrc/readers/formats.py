"""The registry of formats: which reader an entry belongs to."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from portico.errors import InputError
from portico.mrc.readers import base_schema, fid, mrqa, natural_questions, squad, tydi
from portico.mrc.readers.defects import Defects
from portico.mrc.readers.documents import Placed
from portico.mrc.readers.records import Example
from portico.mrc.readers.wording import found


def _one_question(place: str, entry: Any, defects: Defects) -> Iterator[Placed]:
    yield place, entry


@dataclass(frozen=True)
class Format:
    """How the entries of one format become examples.

    Attributes:
        description: What an entry of it has, for messages.
        is_like: Whether an entry looks like it.
        example: Makes an example of one question; raises `InvalidRecord`.
        questions: Yields the questions of an entry.
    """

    description: str
    is_like: Callable[[Mapping[str, Any]], bool]
    example: Callable[[Any], Example]
    questions: Callable[[str, Any, Defects], Iterator[Placed]] = _one_question


_SQUAD = Format(
    "articles with paragraphs, or id, context, question, answers", squad.is_squad, squad.example, squad.questions
)

FORMATS: Mapping[str, Format] = {
    "tydiqa": Format("question_text, document_plaintext, annotations", tydi.is_tydi, tydi.example),
    "natural_questions": Format(
        "annotations, long_answer_candidates, a document in tokens",
        natural_questions.is_natural_questions,
        natural_questions.example,
    ),
    "mrqa": Format(
        "context with qas, or qid, context, question, detected_answers", mrqa.is_mrqa, mrqa.example, mrqa.questions
    ),
    "fid": Format("id, input, output, passages", fid.is_fid, fid.example),
    "base": Format(
        "question, context (a list), example_id, language, target", base_schema.is_base, base_schema.example
    ),
    "squad": _SQUAD,
    "xquad": _SQUAD,
    "mlqa": _SQUAD,
}
"""Formats by name, in the order in which they are tried."""


def format_of(entry: Any, source: object) -> Format:
    """Return the format that an entry looks like.

    Raises:
        InputError: If it looks like none; lists the formats.
    """
    if isinstance(entry, Mapping):
        for one in FORMATS.values():
            if one.is_like(entry):
                return one
    raise InputError(
        f"{source}: no known format of questions: {found(entry)}. The formats are {_listing()}; set `data.format` to "
        "the name of one to see what is wrong with the first record."
    )


def format_named(name: str) -> Format:
    """Return a format by name.

    Raises:
        InputError: If there is none of that name; lists the formats.
    """
    if name not in FORMATS:
        raise InputError(
            f"`data.format={name}` is no known format of questions; set it to one of {_listing()}, or to null to have "
            "it recognised."
        )
    return FORMATS[name]


def _listing() -> str:
    return ", ".join(f"{name} ({one.description})" for name, one in FORMATS.items())
