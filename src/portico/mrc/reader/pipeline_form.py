"""The call form and the outputs of the question-answering pipeline that transformers had."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portico.errors import InputError
from portico.mrc.reader.answer import Answer
from portico.mrc.reader.windows import Contexts

_SETTINGS = {
    "max_answer_len": "max_answer_length",
    "max_seq_len": "max_seq_length",
    "max_question_len": "max_question_length",
}


@dataclass(frozen=True)
class Asked:
    """What a call asks.

    Attributes:
        questions: The questions.
        contexts: The context of each.
        is_many: Whether several were asked, so that a list is returned.
        settings: Settings of the reader, under its own names.
    """

    questions: Sequence[str]
    contexts: Sequence[Contexts]
    is_many: bool
    settings: Mapping[str, Any]


def questions_and_contexts(args: Sequence[Any], inputs_and_settings: Mapping[str, Any]) -> Asked:
    """Sort out the arguments of a call.

    Args:
        args: Mappings with ``question`` and ``context``, or lists of them.
        inputs_and_settings: Or ``question`` and ``context``, a text or a list each; and settings.

    Raises:
        InputError: If no question came, or a question without context, or both forms at once.
    """
    settings = dict(inputs_and_settings)
    question, context = settings.pop("question", None), settings.pop("context", None)
    settings = {_SETTINGS.get(name, name): value for name, value in settings.items()}
    if (question is None) != (context is None) or bool(args) == (question is not None):
        raise InputError(
            "Ask by `question` and `context`, a text or a list each, or by mappings that hold both; the one or the "
            "other, not both and not a half."
        )
    if not args:
        many = not isinstance(question, str)
        questions = list(question) if many else [question]
        # One context serves all questions.
        contexts = [context] * len(questions) if isinstance(context, str) or not many else list(context)
        return Asked(questions, contexts, many, settings)
    records: list[Any] = [record for arg in args for record in ([arg] if isinstance(arg, Mapping | str) else arg)]
    for record in records:
        if not isinstance(record, Mapping) or not {"question", "context"} <= set(record):
            raise InputError(f"{record!r} is no question; it must be a mapping with `question` and `context`.")
    many = len(args) > 1 or not isinstance(args[0], Mapping)
    return Asked([record["question"] for record in records], [record["context"] for record in records], many, settings)


def pipeline_outputs(answer: Answer, top_k: int) -> Any:
    """Return the best answers in the pipeline's form: one mapping, or a list for ``top_k`` above 1.

    Raises:
        InputError: If ``top_k`` is below 1.
    """
    if not isinstance(top_k, int) or top_k < 1:
        raise InputError(f"`top_k={top_k}` leaves no answer; use an int >= 1.")
    best = [
        {
            "score": answer.probability,
            "start": answer.start or 0,
            "end": answer.end or 0,
            "answer": answer.text,
        }
    ]
    others = (one for one in answer.candidates if one.text != answer.text)
    best += [{"score": one.probability, "start": one.start, "end": one.end, "answer": one.text} for one in others]
    return best[0] if top_k == 1 else best[:top_k]
