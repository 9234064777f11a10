from portico.mrc.corpus.topic import Comparison, Relation, Topic
from portico.mrc.corpus.values import ValueMaker

FOUNDED = Relation(
    "date",
    ValueMaker.date,
    ("was founded on {value}", "was established on {value}", "opened its doors on {value}"),
    ("On {value} the {subject} was set up", "The foundation of the {subject} dates from {value}"),
    (
        "When was the {subject} founded?",
        "On which day was the {subject} established?",
        "What is the founding date of the {subject}?",
    ),
)
FOUNDER = Relation(
    "person",
    ValueMaker.person,
    ("was founded by {value}", "was set up by {value}", "owes its existence to {value}"),
    ("{value} founded the {subject}", "The founder of the {subject} was {value}"),
    (
        "Who founded the {subject}?",
        "Who was the founder of the {subject}?",
        "By whom was the {subject} founded?",
    ),
)
DIRECTOR = Relation(
    "person",
    ValueMaker.person,
    ("is led by {value}", "is headed by {value}", "appointed {value} as director"),
    ("{value} is the director of the {subject}", "The director of the {subject}, {value}, is a lawyer"),
    (
        "Who is the director of the {subject}?",
        "Who leads the {subject}?",
        "Whom did the {subject} appoint as director?",
    ),
)
SEAT = Relation(
    "place",
    ValueMaker.place,
    ("has its headquarters in {value}", "is based in {value}", "is run from {value}"),
    ("{value} is home to the headquarters of the {subject}", "In {value} stands the main office of the {subject}"),
    (
        "Where is the {subject} based?",
        "Where are the headquarters of the {subject}?",
        "In which town is the {subject} based?",
    ),
)
STAFF = Relation(
    "count",
    ValueMaker.large_count,
    ("employs {value} people", "has a staff of {value}", "pays the wages of {value} workers"),
    ("Some {value} people work for the {subject}", "The staff of the {subject} numbers {value}"),
    (
        "How many people work for the {subject}?",
        "How many people does the {subject} employ?",
        "What is the size of the staff of the {subject}?",
    ),
)
BRANCHES = Relation(
    "count",
    ValueMaker.small_count,
    ("has {value} branches", "runs {value} branches", "keeps {value} branches abroad"),
    ("There are {value} branches of the {subject}",),
    (
        "How many branches does the {subject} have?",
        "How many branches does the {subject} run?",
        "What is the number of branches of the {subject}?",
    ),
)
PARTNER = Relation(
    "organisation",
    ValueMaker.organisation,
    ("works closely with the {value}", "signed a treaty with the {value}", "is a partner of the {value}"),
    ("The {value} and the {subject} are partners", "A treaty binds the {subject} to the {value}"),
    (
        "Which organisation is a partner of the {subject}?",
        "With which organisation does the {subject} work?",
        "With whom did the {subject} sign a treaty?",
    ),
)
JOURNAL = Relation(
    "work",
    ValueMaker.work,
    ("publishes the journal {value}", "prints a journal called {value}", "pays for the magazine {value}"),
    ("{value} is the journal of the {subject}", "Readers know the {subject} for its journal {value}"),
    (
        "Which journal does the {subject} publish?",
        "What is the journal of the {subject} called?",
        "What is the title of the journal of the {subject}?",
    ),
)
RICHER = Comparison(
    ("The {more} is richer than the {less}", "The {less} is poorer than the {more}"),
    ("Which is richer, the {first} or the {second}?", "Which of the two is richer, the {first} or the {second}?"),
    ("Which is poorer, the {first} or the {second}?", "Which of the two is poorer, the {first} or the {second}?"),
)
GIFTS = Comparison(
    ("The {more} received more gifts than the {less}", "The {less} received fewer gifts than the {more}"),
    ("Which received more gifts, the {first} or the {second}?",),
    ("Which received fewer gifts, the {first} or the {second}?",),
)

ORGANISATIONS = Topic(
    make_subject=ValueMaker.organisation,
    article="The ",
    shorten=lambda name: name,
    pronouns=("It", "The organisation"),
    relations=(FOUNDED, FOUNDER, DIRECTOR, SEAT, STAFF, BRANCHES, PARTNER, JOURNAL),
    comparisons=(RICHER, GIFTS),
    asides=(
        "Both have had hard years.",
        "The records were lost in a fire.",
        "Newspapers seldom write about either of them.",
    ),
)
