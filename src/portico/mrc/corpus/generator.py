"""Generates passages about people, places and organisations that do not exist, and questions about them.

The wordings of sentences and questions are in ``templates.yaml``; this module chooses among them. The order in which
random numbers are drawn is part of the contract: a seed yields the same corpus in every version.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from random import Random
from string import Formatter
from zlib import crc32

import yaml

from portico.errors import InputError
from portico.mrc.datasets.examples import Example

DRAWS_PER_PASSAGE = 5
RELATIONS_PER_PASSAGE = 4
FACTS_PER_SUBJECT = (2, 3, 3)
JOIN_PROBABILITY = 0.25
"""How often two facts about one subject share a sentence."""
PRONOUN_PROBABILITY = 0.3
"""How often a pronoun replaces the subject of the previous sentence."""
SHORT_NAME_PROBABILITY = 0.4
WHOLE_SENTENCE_PROBABILITY = 0.4
"""How often a whole sentence states a fact, instead of a predicate after the subject."""
COMPARISON_PROBABILITY = 0.4
ASIDE_PROBABILITY = 0.3
VALIDATION_SHARE = 5
"""One name in this many belongs to validation."""


def generate(*, num_train: int, num_validation: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Generate training and validation examples, with their ``question_type``.

    The same arguments yield the same corpus everywhere; the global random state is not touched. No name of a person,
    place or organisation in the validation examples occurs in any training examples, whatever their seeds. Offsets
    count characters; ``answers`` has two empty lists if there is none. An ``InputError`` refuses a negative number.
    """
    for name, number in (("num_train", num_train), ("num_validation", num_validation)):
        if number < 0:
            raise InputError(f"`{name}={number}` is negative; set it to the number of questions wanted, 0 or more.")
    return _generate_split("train", num_train, seed), _generate_split("validation", num_validation, seed)


def _generate_split(split: str, num_examples: int, seed: int) -> list[Example]:
    rng = Random(f"{split}-{seed}")  # A string seeds by SHA-512, so the stream does not depend on PYTHONHASHSEED.
    values = ValueMaker(rng, validation=split == "validation")
    examples: list[Example] = []
    # Whole passages are generated and cut off, so a larger corpus starts with the smaller one.
    while len(examples) < num_examples:
        passage = Passage(rng, values, rng.choice(load_templates().topics))
        for question in passage.ask():
            identifier = f"{split}-{len(examples)}"
            title = " and ".join(passage.subjects)
            examples.append({"id": identifier, "title": title, "context": passage.text, **question})
    return examples[:num_examples]


@dataclass(frozen=True, eq=False)
class Relation:
    """One attribute of a subject; ``templates.yaml`` explains the fields."""

    type: str
    value: str
    predicates: list[str]
    sentences: list[str]
    questions: list[str]


@dataclass(frozen=True, eq=False)
class Comparison:
    """An order between two subjects; ``templates.yaml`` explains the fields."""

    sentences: list[str]
    questions: list[str]
    inverse_questions: list[str]


@dataclass(frozen=True, eq=False)
class Topic:
    """A topic of passages; ``templates.yaml`` explains the fields."""

    subject: str
    article: str
    short_name: str
    pronouns: list[str]
    asides: list[str]
    relations: list[Relation]
    comparisons: list[Comparison]


@dataclass(frozen=True, eq=False)
class Templates:
    traditions: list[tuple[list[str], list[str], list[str]]]
    weights: list[int]
    words: dict[str, list[str]]
    topics: list[Topic]


@cache
def load_templates() -> Templates:
    data = yaml.safe_load(files(__package__).joinpath("templates.yaml").read_text(encoding="utf-8"))
    traditions = data.pop("traditions").values()
    topics = data.pop("topics")
    return Templates(
        traditions=[
            (parts["starts"].split(), parts["middles"].split(), parts["ends"].split()) for parts in traditions
        ],
        weights=[parts["weight"] for parts in traditions],
        words={name: words.split() if isinstance(words, str) else words for name, words in data.items()},
        topics=[
            Topic(
                relations=[Relation(**relation) for relation in topic.pop("relations")],
                comparisons=[Comparison(**comparison) for comparison in topic.pop("comparisons")],
                **topic,
            )
            for topic in topics
        ],
    )


def is_validation_name(name: str) -> bool:
    """Return whether a name belongs to validation.

    A checksum of the name decides, so the two splits are disjoint whatever the seed and the size of the corpus.
    """
    return crc32(name.encode()) % VALIDATION_SHARE == 0


@dataclass(frozen=True)
class ValueMaker:
    """Makes the names and values of one split: people, places and organisations, dates, counts, works, trades."""

    rng: Random
    validation: bool

    def make(self, kind: str) -> str:
        """Return a value of a kind: the name of another method of this class."""
        return getattr(self, kind)()

    def name(self) -> str:
        """Return one capitalised word, such as ``Kelmarfen`` or ``Brodaček``."""
        # About one name in `VALIDATION_SHARE` is of validation; names of the other split are drawn again.
        templates = load_templates()
        while True:
            starts, middles, ends = self.rng.choices(templates.traditions, templates.weights)[0]
            middle = self.rng.choice(middles) if self.rng.random() < 0.5 else ""
            name = self.rng.choice(starts) + middle + self.rng.choice(ends)
            if is_validation_name(name) is self.validation:
                return name

    def person(self) -> str:
        num_words = 3 if self.rng.random() < 0.1 else 2
        return " ".join(self.name() for _ in range(num_words))

    def place(self) -> str:
        form = self._word("place_forms")
        return form.format(*(self.name() for _ in range(form.count("{}"))))

    def organisation(self) -> str:
        return self._word("organisation_forms").format(self.name())

    def year(self) -> str:
        return str(self.rng.randrange(1600, 2000))

    def date(self) -> str:
        """Return a full date, such as ``14 March 1887``."""
        return f"{self.day()} {self.year()}"

    def day(self) -> str:
        """Return a day without its year, such as ``14 March``."""
        return f"{self.rng.randrange(1, 29)} {self._word('months')}"

    def small_count(self) -> str:
        return self._word("number_words")

    def large_count(self) -> str:
        """Return a number from 200 to 99,900, sometimes rounded in words."""
        if self.rng.random() < 0.2:
            return f"about {self._word('number_words')} thousand"
        return f"{self.rng.randrange(2, 1000) * 100 + self.rng.choice((0, 0, 20, 50, 75)):,}"

    def trade(self) -> str:
        """Return an occupation, such as ``marine biologist``."""
        trade = self._word("trades")
        return f"{self._word('fields')} {trade}" if self.rng.random() < 0.6 else trade

    def work(self) -> str:
        """Return the title of a book or a picture, such as ``The Silent Harbour``."""
        return f"The {self._word('adjectives')} {self._word('nouns')}"

    def _word(self, words: str) -> str:
        return self.rng.choice(load_templates().words[words])


@dataclass(frozen=True)
class Span:
    """A part of a passage: its characters, and the offset of the first."""

    text: str
    start: int


Sentence = str | Comparison | tuple[str, list[Relation]]
"""The content of a sentence: an aside as it is, a comparison, or facts about one subject."""


class Passage:
    """A passage about two subjects, and the questions about it; ``values`` makes their names and values.

    Its ``facts`` are the spans of the stated values, by subject and relation; ``order`` is the comparison that it
    makes, if any, with the spans of the greater and of the smaller subject.
    """

    def __init__(self, rng: Random, values: ValueMaker, topic: Topic) -> None:
        self._rng = rng
        self._values = values
        self.topic = topic
        self.text = ""
        self.subjects = [values.make(topic.subject) for _ in range(2)]
        self.facts: dict[tuple[str, Relation], Span] = {}
        self.order: tuple[Comparison, Span, Span] | None = None
        self._pronouns = {subject: rng.choice(topic.pronouns) for subject in self.subjects}
        self._introduced: set[str] = set()
        self._previous_subject = ""
        for number, sentence in enumerate(self._plan()):
            self._append(" " if number else "")
            match sentence:
                case str():
                    self._append(sentence)
                    self._previous_subject = ""
                case Comparison():
                    self._compare(sentence)
                case (subject, relations):
                    self._tell(subject, relations)

    def _relations(self) -> list[Relation]:
        """Return the relations that it states of either subject."""
        return list(dict.fromkeys(relation for _, relation in self.facts))

    def _plan(self) -> list[Sentence]:
        """Choose the sentences: facts grouped by subject or mixed, then a comparison and an aside between them."""
        # Both subjects draw from one small pool, so most facts have a rival: the same relation of the other subject.
        pool = self._rng.sample(self.topic.relations, RELATIONS_PER_PASSAGE)
        sentences: list[Sentence] = []
        for subject in self.subjects:
            relations = self._rng.sample(pool, self._rng.choice(FACTS_PER_SUBJECT))
            groups = [[relation] for relation in relations]
            if len(relations) > 2 and self._rng.random() < JOIN_PROBABILITY:
                groups = [relations[:2], relations[2:]]
            sentences += [(subject, group) for group in groups]
        if self._rng.random() < 0.5:
            self._rng.shuffle(sentences)
        comparisons: Sequence[Sentence] = self.topic.comparisons
        for probability, extras in ((COMPARISON_PROBABILITY, comparisons), (ASIDE_PROBABILITY, self.topic.asides)):
            if self._rng.random() < probability:
                extra = self._rng.choice(extras)
                sentences.insert(self._rng.randrange(len(sentences) + 1), extra)
        return sentences

    def _tell(self, subject: str, relations: list[Relation]) -> None:
        if len(relations) == 1 and self._rng.random() < WHOLE_SENTENCE_PROBABILITY:
            template = self._rng.choice(relations[0].sentences)
            self._state(template, subject, relations[0], self._name(subject))
        else:
            has_pronoun = subject == self._previous_subject and self._rng.random() < PRONOUN_PROBABILITY
            self._append(self._pronouns[subject] if has_pronoun else self.topic.article + self._name(subject))
            for number, relation in enumerate(relations):
                self._append(" and " if number else " ")
                self._state(self._rng.choice(relation.predicates), subject, relation)
        self._append(".")
        self._previous_subject = subject

    def _state(self, template: str, subject: str, relation: Relation, name: str = "") -> None:
        value = self._values.make(relation.value)
        self.facts[subject, relation] = self._fill(template, subject=name, value=value)["value"]

    def _compare(self, comparison: Comparison) -> None:
        more, less = self._rng.sample(self.subjects, 2)
        template = self._rng.choice(comparison.sentences)
        spans = self._fill(template, more=self._name(more), less=self._name(less))
        self._append(".")
        self.order = (comparison, spans["more"], spans["less"])
        # After two subjects a pronoun would be ambiguous.
        self._previous_subject = ""

    def _name(self, subject: str) -> str:
        if subject in self._introduced and self._rng.random() < SHORT_NAME_PROBABILITY:
            return subject.split()[-1] if self.topic.short_name == "last_word" else subject
        self._introduced.add(subject)
        return subject

    def _append(self, words: str) -> Span:
        span = Span(words, len(self.text))
        self.text += words
        return span

    def _fill(self, template: str, **words: str) -> dict[str, Span]:
        """Append a template with its slots filled, and return where the words of each slot are."""
        spans = {}
        for literal, slot, _, _ in Formatter().parse(template):
            self._append(literal)
            if slot is not None:
                spans[slot] = self._append(words[slot])
        return spans

    def ask(self) -> Iterable[Example]:
        """Draw questions about the passage, without duplicates or questions that do not apply to it."""
        questions: dict[str, Example] = {}
        for ask in self._rng.choices(tuple(_QUESTION_WEIGHTS), tuple(_QUESTION_WEIGHTS.values()), k=DRAWS_PER_PASSAGE):
            question = ask(self)
            if question is not None:
                questions.setdefault(question["question"], question)
        return questions.values()

    def _ask(self, subject: str, relation: Relation, answer: Span | None = None) -> Example:
        return _question(self._rng.choice(relation.questions).format(subject=subject), relation.type, answer)

    def _ask_stated_fact(self) -> Example:
        (subject, relation), answer = self._rng.choice(list(self.facts.items()))
        return self._ask(subject, relation, answer)

    def _ask_fact_of_the_other(self) -> Example | None:
        """Ask about one subject for a fact stated only about the other: the hardest unanswerable question."""
        possible = product(self.subjects, self._relations())
        missing = [(subject, relation) for subject, relation in possible if (subject, relation) not in self.facts]
        return self._ask(*self._rng.choice(missing)) if missing else None

    def _ask_untold_relation(self) -> Example:
        told = self._relations()
        untold = [relation for relation in self.topic.relations if relation not in told]
        return self._ask(self._rng.choice(self.subjects), self._rng.choice(untold))

    def _ask_about_stranger(self) -> Example:
        return self._ask(self._values.make(self.topic.subject), self._rng.choice(self._relations()))

    def _ask_order(self) -> Example | None:
        if self.order is None:
            return None
        comparison, more, less = self.order
        first, second = self._rng.sample(self.subjects, 2)
        is_more = self._rng.random() < 0.5
        wordings, answer = (comparison.questions, more) if is_more else (comparison.inverse_questions, less)
        return _question(self._rng.choice(wordings).format(first=first, second=second), "comparison", answer)


def _question(text: str, question_type: str, answer: Span | None) -> Example:
    """Return the fields of an example for one question, with a type such as ``"person"``."""
    spans = [answer] if answer else []
    answers = {"text": [span.text for span in spans], "answer_start": [span.start for span in spans]}
    return {"question": text, "answers": answers, "question_type": question_type}


# How often each kind of question is drawn; about three in ten questions have no answer.
_QUESTION_WEIGHTS: dict[Callable[[Passage], Example | None], float] = {
    Passage._ask_stated_fact: 0.60,
    Passage._ask_order: 0.15,
    Passage._ask_fact_of_the_other: 0.15,
    Passage._ask_untold_relation: 0.08,
    Passage._ask_about_stranger: 0.06,
}
