"""Data that needs no download: sentences, stories and pictures that a small model learns within minutes.

Passages with questions, whose names and wordings have to be many, are in :mod:`portico.mrc.corpus`.

Every function takes the random generator to draw from; the same seed makes the same records.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

Record = dict[str, Any]

_SUBJECTS = {
    "film": ("plot", "cast", "ending", "music", "camera work"),
    "hotel": ("room", "breakfast", "view", "service", "pool"),
    "phone": ("screen", "battery", "sound", "design", "keyboard"),
    "meal": ("soup", "fish", "dessert", "wine", "bread"),
}
_GOOD = ["wonderful", "brilliant", "pleasant", "superb", "charming", "excellent", "lovely", "delightful"]
_BAD = ["terrible", "awful", "boring", "poor", "dreadful", "disappointing", "horrible", "weak"]
_ADVERBS = ["really", "quite", "very", "truly", "rather"]


def review(draw: Random) -> Record:
    """Return a ``sentence`` about one aspect and its ``label``, positive or negative; "not" reverses the label."""
    subject = draw.choice(list(_SUBJECTS))
    is_good, is_turned = draw.random() < 0.5, draw.random() < 0.4
    word = draw.choice(_GOOD if is_good != is_turned else _BAD)
    verb = "was not" if is_turned else draw.choice(("was", "seemed", "is"))
    sentence = f"the {draw.choice(_SUBJECTS[subject])} of this {subject} {verb} {draw.choice(_ADVERBS)} {word}"
    if draw.random() < 0.5:  # the opinion of others does not change the label
        sentence += f" , although my friends called it {draw.choice(_GOOD + _BAD)}"
    return {"sentence": f"{sentence} .", "label": "positive" if is_good else "negative"}


_TOPICS = {
    "music": "concert violin singer chorus melody piano rhythm album orchestra tune band guitar",
    "sport": "match goal coach runner stadium team score referee race champion league trophy",
    "travel": "airport hotel journey suitcase ticket island coast passport train luggage guide harbour",
    "cooking": "recipe oven butter flour kitchen pepper soup dough onion sauce spoon garlic",
}
TOPICS = {topic: words.split() for topic, words in _TOPICS.items()}
FILLERS = ("the a of in was with and then we they saw after before again very old new small our some").split()  # noqa: SIM905 -- as below


def topic_remark(draw: Random) -> Record:
    """Return ``words``, two of them of the ``topic``, up to two of any topic, and fillers between."""
    topic = draw.choice(list(TOPICS))
    words = draw.sample(TOPICS[topic], 2) + draw.choices(FILLERS, k=draw.randint(4, 9))
    words += [draw.choice(TOPICS[draw.choice(list(TOPICS))]) for _ in range(draw.randint(0, 2))]
    draw.shuffle(words)
    return {"words": words, "topic": topic}


_SYLLABLES = ("ba bel cor dan el fi gor ha il jo ka lem mar nor or pel quin ra sol tar ul ven wil yor zan").split()  # noqa: SIM905 -- ruff would write one syllable per line
_MONTHS = ["January", "March", "April", "June", "August", "October", "December"]
_REPORTS = (
    "{PER} moved from {LOC} to {LOC} in {DATE} .",
    "In {DATE} {PER} joined {ORG} in {LOC} .",
    "{ORG} of {LOC} was founded by {PER} .",
    "{PER} met {PER} at the station of {LOC} .",
    "After {DATE} nobody in {LOC} worked for {ORG} .",
    "The lawyers of {ORG} wrote to {PER} in {DATE} .",
)
_COMPANY_ENDS = ("Works", "Group", "Bank", "Records")


def _name(draw: Random) -> str:
    return "".join(draw.choices(_SYLLABLES, k=draw.randint(2, 3))).capitalize()


def report(draw: Random) -> Record:
    """Return the words of a sentence (``tokens``) and their tags in BIO form (``ner_tags``); few names occur twice."""
    tokens, tags = [], []
    for word in draw.choice(_REPORTS).split():
        kind = word.strip("{}")
        if kind == word:
            tokens.append(word)
            tags.append("O")
            continue
        made = {
            "PER": lambda: [_name(draw), _name(draw)][: draw.randint(1, 2)],
            "LOC": lambda: [_name(draw)],
            "ORG": lambda: [_name(draw), draw.choice(_COMPANY_ENDS)],
            "DATE": lambda: [draw.choice(_MONTHS), str(draw.randint(1900, 2030))],
        }[kind]()
        tokens += made
        tags += [f"B-{kind}", *[f"I-{kind}"] * (len(made) - 1)]
    return {"tokens": tokens, "ner_tags": tags}


_TRADES = {
    "cook": ("chops the onions", "heats the oven", "salts the soup", "kneads the dough", "tastes the sauce"),
    "sailor": ("hoists the sails", "drops the anchor", "scrubs the deck", "watches the tide", "reads the compass"),
    "gardener": ("waters the roses", "cuts the hedge", "plants the bulbs", "rakes the leaves", "mows the lawn"),
    "teacher": ("wipes the blackboard", "hands out books", "marks the tests", "opens the lesson", "asks the class"),
    "painter": ("mixes colours", "cleans the brushes", "stretches a canvas", "frames a portrait", "draws a sketch"),
}


def story(draw: Random) -> Record:
    """Return the beginning of a story (``sent1``, ``sent2``), four endings, and the number of the right ending."""
    trades = draw.sample(list(_TRADES), 4)
    number = draw.randrange(4)
    first, second, last = draw.sample(_TRADES[trades[number]], 3)
    name = _name(draw)
    endings = [last if trade == trades[number] else draw.choice(_TRADES[trade]) for trade in trades]
    return {
        "sent1": f"{name} {first} and {second} .",
        "sent2": f"Then {name}",
        **{f"ending{index}": f"{ending} ." for index, ending in enumerate(endings)},
        "label": number,
    }


def line(draw: Random) -> Record:
    """Return a line of ``text``: a sentence about a trade, or a review."""
    if draw.random() < 0.5:
        return {"text": review(draw)["sentence"]}
    trade = draw.choice(list(_TRADES))
    first, second = draw.sample(_TRADES[trade], 2)
    return {"text": f"every {draw.choice(_MONTHS)} {draw.choice(_PEOPLE)} the {trade} {first} and then {second} ."}


_PEOPLE = ["Ada", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Leo"]
_CITIES = ["Athens", "Berlin", "Cairo", "Dublin", "Geneva", "Lisbon", "Madrid", "Oslo", "Rome", "Vienna", "Warsaw"]
_WEATHER = ("rain fell all night", "the streets were crowded", "the trains were late", "the sun was shining")


def article(draw: Random) -> Record:
    """Return a ``document`` of a few sentences and its ``summary``, which leaves out the weather."""
    person = draw.choice(_PEOPLE)
    city = draw.choice(_CITIES)
    trade = draw.choice(list(_TRADES))
    deed = draw.choice(_TRADES[trade])
    sentences = [
        f"The {trade} {person} came to {city} in {draw.choice(_MONTHS)}.",
        f"In {city} {draw.choice(_WEATHER)}.",
        f"On most days {person} {deed}.",
    ]
    if draw.random() < 0.5:
        sentences.insert(1, f"Before that {draw.choice(_WEATHER)} for weeks.")
    return {"document": " ".join(sentences), "summary": f"{person} {deed} in {city}."}


_NOUNS = {
    "house": "la casa",
    "table": "la mesa",
    "cow": "la vaca",
    "moon": "la luna",
    "queen": "la reina",
    "dog": "el perro",
    "cat": "el gato",
    "book": "el libro",
    "king": "el rey",
    "boat": "el barco",
}
_ADJECTIVES = {"red": "roj", "old": "viej", "new": "nuev", "white": "blanc", "black": "negr", "small": "pequeñ"}
_VERBS = {"sees": "ve", "looks for": "busca", "finds": "encuentra", "paints": "pinta", "has": "tiene"}


def translation(draw: Random) -> Record:
    """Return a ``translation`` from English (``en``) to Spanish (``es``), with inflected adjectives after nouns."""
    english, spanish = [], []
    for _ in range(2):
        noun, adjective = draw.choice(list(_NOUNS)), draw.choice(list(_ADJECTIVES))
        article_, word = _NOUNS[noun].split()
        english.append(f"the {adjective} {noun}")
        spanish.append(f"{article_} {word} {_ADJECTIVES[adjective]}{'a' if article_ == 'la' else 'o'}")
    verb = draw.choice(list(_VERBS))
    return {"translation": {"en": f" {verb} ".join(english) + " .", "es": f" {_VERBS[verb]} ".join(spanish) + " ."}}


_PATTERNS: Mapping[str, Callable[[int, int], int]] = {
    "rows": lambda x, y: y,
    "columns": lambda x, y: x,
    "checks": lambda x, y: x + y,
    "plain": lambda x, y: 0,
}
_IMAGE_SIZE = 32  # pixels


def picture(draw: Random) -> Record:
    """Return an ``image``, 32 x 32 pixels, of a pattern in two colours with noise, and its ``label``."""
    from PIL import Image

    label = draw.choice(list(_PATTERNS))
    width = draw.randint(3, 6)
    shift = draw.randrange(12)
    colours = [bytes(draw.randrange(low, low + 128) for _ in range(3)) for low in draw.sample((0, 128), 2)]
    cells = [(place + shift) // width for place in range(_IMAGE_SIZE)]
    pixels = b"".join(colours[_PATTERNS[label](x, y) % 2] for y in cells for x in cells)
    size = (_IMAGE_SIZE, _IMAGE_SIZE)
    noise = Image.frombytes("RGB", size, draw.randbytes(len(pixels)))
    return {"image": Image.blend(Image.frombytes("RGB", size, pixels), noise, 0.2), "label": label}
