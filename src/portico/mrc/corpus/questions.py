"""Questions about a passage: those that it answers, and those that only look as if it did."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from portico.mrc.corpus.passage import Passage
from portico.mrc.corpus.text import Span
from portico.mrc.corpus.topic import Relation
from portico.mrc.corpus.values import ValueMaker


@dataclass(frozen=True)
class Question:
    """A question about a passage.

    Args:
        text: Its wording.
        question_type: What it asks for, such as ``"person"``.
        answer: Where the passage answers it, or ``None``.
    """

    text: str
    question_type: str
    answer: Span | None


Ask = Callable[[Random, ValueMaker, Passage], Question | None]


def ask_questions(rng: Random, values: ValueMaker, passage: Passage, num_draws: int) -> list[Question]:
    """Ask about a passage.

    Args:
        rng: Source of every choice.
        values: Makes names that the passage does not hold.
        passage: What to ask about.
        num_draws: How often a question is drawn; repeated ones and those without ground in the passage are dropped.
    """
    questions: dict[str, Question] = {}
    for ask in rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()), k=num_draws):
        question = ask(rng, values, passage)
        if question is not None:
            questions.setdefault(question.text, question)
    return list(questions.values())


def _word(rng: Random, subject: str, relation: Relation, answer: Span | None = None) -> Question:
    return Question(rng.choice(relation.questions).format(subject=subject), relation.question_type, answer)


def _about_stated_fact(rng: Random, _values: ValueMaker, passage: Passage) -> Question:
    (subject, relation), answer = rng.choice(list(passage.facts.items()))
    return _word(rng, subject, relation, answer)


def _about_fact_of_the_other(rng: Random, _values: ValueMaker, passage: Passage) -> Question | None:
    """Ask of one subject what the passage tells only of the other: the hardest question without an answer."""
    missing = [
        (subject, relation)
        for subject in passage.subjects
        for relation in passage.relations()
        if (subject, relation) not in passage.facts
    ]
    return _word(rng, *rng.choice(missing)) if missing else None


def _about_untold_relation(rng: Random, _values: ValueMaker, passage: Passage) -> Question:
    told = passage.relations()
    untold = [relation for relation in passage.topic.relations if relation not in told]
    return _word(rng, rng.choice(passage.subjects), rng.choice(untold))


def _about_stranger(rng: Random, values: ValueMaker, passage: Passage) -> Question:
    return _word(rng, passage.topic.make_subject(values), rng.choice(passage.relations()))


def _about_order(rng: Random, _values: ValueMaker, passage: Passage) -> Question | None:
    if passage.order is None:
        return None
    comparison = passage.order.comparison
    first, second = rng.sample(passage.subjects, 2)
    if rng.random() < 0.5:
        wordings, answer = comparison.questions, passage.order.more
    else:
        wordings, answer = comparison.inverse_questions, passage.order.less
    return Question(rng.choice(wordings).format(first=first, second=second), "comparison", answer)


WEIGHTS: dict[Ask, float] = {
    _about_stated_fact: 0.60,
    _about_order: 0.15,
    _about_fact_of_the_other: 0.15,
    _about_untold_relation: 0.08,
    _about_stranger: 0.06,
}
"""How often each kind of question is drawn; about three in ten have no answer."""
