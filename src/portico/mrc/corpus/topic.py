"""What a topic is: the kind of subjects that a passage is about, what can be said of them and asked about them."""

from collections.abc import Callable
from dataclasses import dataclass

from portico.mrc.corpus.values import ValueMaker

MakeValue = Callable[[ValueMaker], str]


@dataclass(frozen=True)
class Relation:
    """One attribute of a subject, with every way to state it and to ask for it.

    Args:
        question_type: The type reported for its questions.
        make_value: Makes a value.
        predicates: Statements that follow a subject, each with one ``{value}``; two can be joined by "and".
        sentences: Whole statements without the full stop, each with one ``{subject}`` and one ``{value}``.
        questions: Questions, each with one ``{subject}``.
    """

    question_type: str
    make_value: MakeValue
    predicates: tuple[str, ...]
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """An order between two subjects, stated in one sentence.

    Args:
        sentences: Statements without the full stop, each with one ``{more}`` and one ``{less}``.
        questions: Questions for the greater one, each with ``{first}`` and ``{second}``.
        inverse_questions: Questions for the lesser one.
    """

    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    inverse_questions: tuple[str, ...]


@dataclass(frozen=True)
class Topic:
    """A kind of subject.

    Args:
        make_subject: Makes the name of a subject.
        article: What stands before a subject that opens a sentence, such as ``"The "``.
        shorten: Gives the name by which later sentences may call it.
        pronouns: Words that may stand for the subject of the sentence before.
        relations: Everything that can be said of one subject.
        comparisons: Everything that can be said of two.
        asides: Sentences that state nothing anybody asks for.
    """

    make_subject: MakeValue
    article: str
    shorten: Callable[[str], str]
    pronouns: tuple[str, ...]
    relations: tuple[Relation, ...]
    comparisons: tuple[Comparison, ...]
    asides: tuple[str, ...]
