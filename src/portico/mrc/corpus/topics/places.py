from portico.mrc.corpus.topic import Comparison, Relation, Topic
from portico.mrc.corpus.values import ValueMaker

POPULATION = Relation(
    "count",
    ValueMaker.large_count,
    ("has {value} inhabitants", "is home to {value} people", "has a population of {value}"),
    ("Some {value} people live in {subject}", "The last census counted {value} inhabitants in {subject}"),
    (
        "How many people live in {subject}?",
        "How many inhabitants does {subject} have?",
        "What is the population of {subject}?",
    ),
)
FOUNDED = Relation(
    "date",
    ValueMaker.year,
    ("was founded in {value}", "was established in {value}", "received its charter in {value}"),
    ("In {value} settlers founded {subject}", "The founding of {subject} dates from {value}"),
    (
        "When was {subject} founded?",
        "In which year was {subject} established?",
        "What is the founding year of {subject}?",
    ),
)
FOUNDER = Relation(
    "person",
    ValueMaker.person,
    ("was founded by {value}", "owes its existence to {value}", "was laid out by {value}"),
    ("{value} founded {subject}", "The founder of {subject} was {value}"),
    (
        "Who founded {subject}?",
        "Who was the founder of {subject}?",
        "By whom was {subject} founded?",
    ),
)
MAYOR = Relation(
    "person",
    ValueMaker.person,
    ("is governed by {value}", "elected {value} as its mayor", "has {value} as its mayor"),
    ("{value} is the mayor of {subject}", "The mayor of {subject}, {value}, was a teacher before"),
    (
        "Who is the mayor of {subject}?",
        "Who governs {subject}?",
        "Whom did {subject} elect as mayor?",
    ),
)
RIVER = Relation(
    "place",
    ValueMaker.place,
    ("lies on the river {value}", "stands on the banks of the {value}", "was built beside the river {value}"),
    ("The river {value} flows through {subject}",),
    (
        "On which river does {subject} lie?",
        "Which river flows through {subject}?",
        "What is the river of {subject} called?",
    ),
)
MARKET = Relation(
    "date",
    ValueMaker.day,
    ("holds its fair on {value}", "celebrates its fair on {value}", "opens its yearly fair on {value}"),
    ("Every year on {value} a fair fills {subject}", "The fair of {subject} begins on {value}"),
    (
        "When is the fair of {subject} held?",
        "On which day does the fair of {subject} begin?",
        "What is the date of the fair in {subject}?",
    ),
)
BRIDGES = Relation(
    "count",
    ValueMaker.small_count,
    ("has {value} bridges", "is crossed by {value} bridges", "is proud of its {value} bridges"),
    ("Visitors to {subject} can cross {value} bridges",),
    (
        "How many bridges does {subject} have?",
        "How many bridges are there in {subject}?",
        "What is the number of bridges in {subject}?",
    ),
)
SCHOOL = Relation(
    "organisation",
    ValueMaker.organisation,
    ("is the seat of the {value}", "hosts the {value}", "houses the {value}"),
    ("The {value} has its seat in {subject}", "Students come to {subject} for the {value}"),
    (
        "Which organisation has its seat in {subject}?",
        "Which organisation does {subject} host?",
        "What institution is housed in {subject}?",
    ),
)
HIGHER = Comparison(
    ("{more} lies higher than {less}", "{less} lies lower than {more}"),
    ("Which town lies higher, {first} or {second}?", "Which is the higher town, {first} or {second}?"),
    ("Which town lies lower, {first} or {second}?", "Which is the lower town, {first} or {second}?"),
)
LARGER = Comparison(
    ("{more} covers a larger area than {less}", "{less} covers a smaller area than {more}"),
    ("Which covers a larger area, {first} or {second}?", "Which town is larger, {first} or {second}?"),
    ("Which covers a smaller area, {first} or {second}?", "Which town is smaller, {first} or {second}?"),
)

PLACES = Topic(
    make_subject=ValueMaker.place,
    article="",
    shorten=lambda name: name,
    pronouns=("It", "The town"),
    relations=(POPULATION, FOUNDED, FOUNDER, MAYOR, RIVER, MARKET, BRIDGES, SCHOOL),
    comparisons=(HIGHER, LARGER),
    asides=(
        "A road joins the two towns.",
        "Fishing has been in decline for years.",
        "The old walls can still be seen.",
    ),
)
