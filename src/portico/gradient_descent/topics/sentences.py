"""Sentences about a topic, made from word lists; the same for the same seed."""

import random
from dataclasses import dataclass

_WORDS = {
    "music": "concert violin singer chorus melody piano rhythm album orchestra tune band guitar",
    "sport": "match goal coach runner stadium team score referee race champion league trophy",
    "travel": "airport hotel journey suitcase ticket island coast passport train luggage guide harbour",
    "cooking": "recipe oven butter flour kitchen pepper soup dough onion sauce spoon garlic",
}
TOPICS = tuple(_WORDS)
_FILLERS = [
    "the",
    "a",
    "of",
    "in",
    "was",
    "with",
    "and",
    "then",
    "we",
    "they",
    "saw",
    "after",
    "before",
    "again",
    "very",
    "old",
    "new",
    "small",
    "our",
    "some",
]


@dataclass(frozen=True)
class Sentence:
    """A sentence and its topic.

    Args:
        words: Its words.
        topic: Index into ``TOPICS``.
    """

    words: tuple[str, ...]
    topic: int


def make_sentences(count: int, seed: int) -> list[Sentence]:
    """Return ``count`` sentences: two words of the topic, up to two words of any, and fillers between."""
    draw = random.Random(seed)
    return [_make_sentence(draw) for _ in range(count)]


def vocabulary() -> list[str]:
    """Return every word that a sentence can hold, in a fixed order."""
    return [word for words in _WORDS.values() for word in words.split()] + _FILLERS


def _make_sentence(draw: random.Random) -> Sentence:
    topic = draw.randrange(len(TOPICS))
    words = draw.sample(_WORDS[TOPICS[topic]].split(), 2) + draw.choices(_FILLERS, k=draw.randint(4, 9))
    words += [draw.choice(_WORDS[draw.choice(TOPICS)].split()) for _ in range(draw.randint(0, 2))]
    draw.shuffle(words)
    return Sentence(tuple(words), topic)
