from portico.mrc.corpus.topic import Comparison, Relation, Topic
from portico.mrc.corpus.values import ValueMaker

BIRTH_PLACE = Relation(
    "place",
    ValueMaker.place,
    ("was born in {value}", "came into the world in {value}", "was born to a poor family in {value}"),
    ("{value} was the birthplace of {subject}", "It was in {value} that {subject} was born"),
    (
        "Where was {subject} born?",
        "What is the birthplace of {subject}?",
        "In which town was {subject} born?",
        "{subject} was born in what place?",
    ),
)
BIRTH_DATE = Relation(
    "date",
    ValueMaker.date,
    ("was born on {value}", "came into the world on {value}"),
    ("{subject}, born on {value}, grew up by the sea", "The birthday of {subject} fell on {value}"),
    (
        "When was {subject} born?",
        "What is the date of birth of {subject}?",
        "On which day was {subject} born?",
    ),
)
DEATH_YEAR = Relation(
    "date",
    ValueMaker.year,
    ("died in {value}", "passed away in {value}", "died of a fever in {value}"),
    ("In {value} {subject} died", "The death of {subject} in {value} was widely mourned"),
    (
        "When did {subject} die?",
        "In what year did {subject} die?",
        "What is the year of the death of {subject}?",
    ),
)
TRADE = Relation(
    "occupation",
    ValueMaker.trade,
    ("worked as a {value}", "earned a living as a {value}", "was by profession a {value}"),
    ("As a {value}, {subject} was known abroad",),
    (
        "What was the profession of {subject}?",
        "What did {subject} work as?",
        "How did {subject} earn a living?",
    ),
)
EMPLOYER = Relation(
    "organisation",
    ValueMaker.organisation,
    ("joined the {value}", "was employed by the {value}", "spent a long career at the {value}"),
    ("The {value} employed {subject} for many years", "For decades {subject} was on the staff of the {value}"),
    (
        "Who employed {subject}?",
        "Which organisation did {subject} join?",
        "For which organisation did {subject} work?",
    ),
)
TEACHER = Relation(
    "person",
    ValueMaker.person,
    ("studied under {value}", "was taught by {value}", "learned the craft from {value}"),
    ("{value} was the teacher of {subject}", "The young {subject} took lessons from {value}"),
    (
        "Who taught {subject}?",
        "Who was the teacher of {subject}?",
        "Under whom did {subject} study?",
    ),
)
SPOUSE = Relation(
    "person",
    ValueMaker.person,
    ("married {value}", "was married to {value}", "took {value} as a spouse"),
    ("{value} married {subject} in a small chapel", "The wedding of {subject} and {value} was a quiet one"),
    (
        "Who married {subject}?",
        "Whom did {subject} marry?",
        "Who was the spouse of {subject}?",
    ),
)
CHILDREN = Relation(
    "count",
    ValueMaker.small_count,
    ("raised {value} children", "had {value} children", "was the parent of {value} children"),
    ("The household of {subject} counted {value} children",),
    (
        "How many children did {subject} have?",
        "How many children did {subject} raise?",
        "What was the number of children of {subject}?",
    ),
)
BOOK = Relation(
    "work",
    ValueMaker.work,
    ("wrote {value}", "published {value}", "is remembered for the book {value}"),
    ("{value} is the best known book of {subject}", "Critics praised {value}, written by {subject}"),
    (
        "Which book did {subject} write?",
        "What is the title of the book by {subject}?",
        "What did {subject} publish?",
    ),
)
OUTLIVED = Comparison(
    ("{more} lived longer than {less}", "{less} did not live as long as {more}"),
    ("Who lived longer, {first} or {second}?", "Who had the longer life, {first} or {second}?"),
    ("Who lived less long, {first} or {second}?", "Who had the shorter life, {first} or {second}?"),
)
PRIZES = Comparison(
    ("{more} won more prizes than {less}", "{less} won fewer prizes than {more}"),
    ("Who won more prizes, {first} or {second}?", "Which of the two won more prizes, {first} or {second}?"),
    ("Who won fewer prizes, {first} or {second}?", "Which of the two won fewer prizes, {first} or {second}?"),
)

PEOPLE = Topic(
    make_subject=ValueMaker.person,
    article="",
    shorten=lambda name: name.split()[-1],
    pronouns=("She", "He"),
    relations=(BIRTH_PLACE, BIRTH_DATE, DEATH_YEAR, TRADE, EMPLOYER, TEACHER, SPOUSE, CHILDREN, BOOK),
    comparisons=(OUTLIVED, PRIZES),
    asides=(
        "Few letters from that time survive.",
        "The two families were neighbours.",
        "Little else is known of those years.",
    ),
)
