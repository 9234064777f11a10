"""Passages: which facts are told of which subjects, and the text that tells them."""

from dataclasses import dataclass, field
from random import Random

from portico.mrc.corpus.text import Span, Text
from portico.mrc.corpus.topic import Comparison, Relation, Topic
from portico.mrc.corpus.values import ValueMaker

RELATIONS_PER_PASSAGE = 4
FACTS_PER_SUBJECT = (2, 3, 3)
JOIN_PROBABILITY = 0.25
"""How often two facts of one subject share a sentence."""
PRONOUN_PROBABILITY = 0.3
"""How often the subject of the sentence before is called by a pronoun."""
SHORT_NAME_PROBABILITY = 0.4
WHOLE_SENTENCE_PROBABILITY = 0.4
"""How often a fact has a sentence of its own shape instead of a predicate after its subject."""
COMPARISON_PROBABILITY = 0.4
ASIDE_PROBABILITY = 0.3


Sentence = str | Comparison | tuple[str, list[Relation]]
"""What a sentence is to say: an aside as it stands, a comparison, or facts of one subject."""


@dataclass(frozen=True)
class Order:
    """What a comparison sentence says, and where it names the two subjects."""

    comparison: Comparison
    more: Span
    less: Span


@dataclass
class Passage:
    """A finished passage.

    Args:
        topic: What kind of subjects it is about.
        subjects: Their full names.
        facts: Where the value of each stated fact stands, by subject and relation.
        order: The comparison it states, if any.
        text: What it says.
    """

    topic: Topic
    subjects: list[str]
    facts: dict[tuple[str, Relation], Span] = field(default_factory=dict)
    order: Order | None = None
    text: str = ""

    def relations(self) -> list[Relation]:
        """Return the relations stated of any subject, each once."""
        return list(dict.fromkeys(relation for _, relation in self.facts))


def write_passage(rng: Random, values: ValueMaker, topic: Topic) -> Passage:
    """Write a passage about two subjects of a topic.

    Args:
        rng: Source of every choice.
        values: Makes names and values of the wanted side.
        topic: What the passage is about.
    """
    passage = Passage(topic, [topic.make_subject(values) for _ in range(2)])
    _Writer(rng, values, passage).write()
    return passage


class _Writer:
    def __init__(self, rng: Random, values: ValueMaker, passage: Passage) -> None:
        self._rng = rng
        self._values = values
        self._passage = passage
        self._text = Text()
        self._pronouns = {subject: rng.choice(passage.topic.pronouns) for subject in passage.subjects}
        self._introduced: set[str] = set()
        self._previous_subject = ""

    def write(self) -> None:
        for number, sentence in enumerate(self._plan()):
            self._text.write(" " if number else "")
            match sentence:
                case str():
                    self._text.write(sentence)
                    self._previous_subject = ""
                case Comparison():
                    self._compare(sentence)
                case (subject, relations):
                    self._tell(subject, relations)
        self._passage.text = self._text.value

    def _plan(self) -> list[Sentence]:
        """Choose the sentences: facts grouped by subject or mixed, then a comparison and an aside between them."""
        topic = self._passage.topic
        pool = self._rng.sample(topic.relations, RELATIONS_PER_PASSAGE)
        sentences: list[Sentence] = []
        for subject in self._passage.subjects:
            relations = self._rng.sample(pool, self._rng.choice(FACTS_PER_SUBJECT))
            sentences += [(subject, group) for group in self._group(relations)]
        if self._rng.random() < 0.5:
            self._rng.shuffle(sentences)
        if self._rng.random() < COMPARISON_PROBABILITY:
            self._insert(sentences, self._rng.choice(topic.comparisons))
        if self._rng.random() < ASIDE_PROBABILITY:
            self._insert(sentences, self._rng.choice(topic.asides))
        return sentences

    def _group(self, relations: list[Relation]) -> list[list[Relation]]:
        if len(relations) > 2 and self._rng.random() < JOIN_PROBABILITY:
            return [relations[:2], relations[2:]]
        return [[relation] for relation in relations]

    def _insert(self, sentences: list[Sentence], extra: str | Comparison) -> None:
        sentences.insert(self._rng.randrange(len(sentences) + 1), extra)

    def _tell(self, subject: str, relations: list[Relation]) -> None:
        if len(relations) == 1 and self._rng.random() < WHOLE_SENTENCE_PROBABILITY:
            template = self._rng.choice(relations[0].sentences)
            self._state(template, subject, relations[0], self._name(subject))
        else:
            self._text.write(self._opening(subject))
            for number, relation in enumerate(relations):
                self._text.write(" and " if number else " ")
                self._state(self._rng.choice(relation.predicates), subject, relation)
        self._text.write(".")
        self._previous_subject = subject

    def _state(self, template: str, subject: str, relation: Relation, name: str = "") -> None:
        value = relation.make_value(self._values)
        spans = self._text.fill(template, subject=name, value=value)
        self._passage.facts[subject, relation] = spans["value"]

    def _opening(self, subject: str) -> str:
        if subject == self._previous_subject and self._rng.random() < PRONOUN_PROBABILITY:
            return self._pronouns[subject]
        return self._passage.topic.article + self._name(subject)

    def _name(self, subject: str) -> str:
        if subject in self._introduced and self._rng.random() < SHORT_NAME_PROBABILITY:
            return self._passage.topic.shorten(subject)
        self._introduced.add(subject)
        return subject

    def _compare(self, comparison: Comparison) -> None:
        more, less = self._rng.sample(self._passage.subjects, 2)
        spans = self._text.fill(self._rng.choice(comparison.sentences), more=self._name(more), less=self._name(less))
        self._text.write(".")
        self._passage.order = Order(comparison, spans["more"], spans["less"])
        self._previous_subject = ""
