"""The values that passages state: names of people, places and organisations, dates, counts, works, trades."""

from random import Random

from portico.mrc.corpus.names import NameMaker


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MONTHS = _words("January February March April May June July August September October November December")
PLACE_FORMS = ("{}",) * 8 + ("Port {}", "{} Bay", "New {}", "{} upon {}", "Saint {}", "Upper {}")
ORGANISATION_FORMS = (
    "{} Institute",
    "{} Academy",
    "{} Foundation",
    "{} Shipping Company",
    "{} Trading Company",
    "{} Railway",
    "{} Bank",
    "{} Observatory",
    "University of {}",
    "Society of {}",
    "{} Institute of Botany",
    "{} School of Music",
)
ADJECTIVES = _words("Silent Golden Broken Distant Last Hidden Crimson Frozen Second Wandering Empty Patient")
NOUNS = _words("Harbour Garden Winter Mirror River Lantern Orchard Bridge Letter Island Shepherd Clock")
FIELDS = _words("marine civil rural medieval tropical naval comparative colonial forest maritime")
TRADES = _words("biologist lawyer painter historian botanist builder surgeon poet chemist geologist")
NUMBER_WORDS = _words("two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen")


class ValueMaker:
    """Makes every kind of value for one side of the corpus.

    Args:
        rng: Source of every choice.
        validation: Whose names to use.
    """

    def __init__(self, rng: Random, *, validation: bool) -> None:
        self._rng = rng
        self._names = NameMaker(rng, validation=validation)

    def person(self) -> str:
        """Return a first name and a surname, sometimes with a middle name."""
        num_words = 3 if self._rng.random() < 0.1 else 2
        return " ".join(self._names.name() for _ in range(num_words))

    def place(self) -> str:
        """Return the name of a town, of one to three words."""
        form = self._rng.choice(PLACE_FORMS)
        return form.format(*(self._names.name() for _ in range(form.count("{}"))))

    def organisation(self) -> str:
        """Return the name of an institution or a company, of two to four words."""
        return self._rng.choice(ORGANISATION_FORMS).format(self._names.name())

    def year(self) -> str:
        """Return a year from 1600 to 1999."""
        return str(self._rng.randrange(1600, 2000))

    def date(self) -> str:
        """Return a full date, such as ``14 March 1887``."""
        return f"{self._rng.randrange(1, 29)} {self._rng.choice(MONTHS)} {self.year()}"

    def day(self) -> str:
        """Return a day without its year, such as ``14 March``."""
        return f"{self._rng.randrange(1, 29)} {self._rng.choice(MONTHS)}"

    def small_count(self) -> str:
        """Return a number from 2 to 15, in words."""
        return self._rng.choice(NUMBER_WORDS)

    def large_count(self) -> str:
        """Return a number from 200 to 99,900, sometimes rounded in words."""
        if self._rng.random() < 0.2:
            return f"about {self._rng.choice(NUMBER_WORDS)} thousand"
        return f"{self._rng.randrange(2, 1000) * 100 + self._rng.choice((0, 0, 20, 50, 75)):,}"

    def trade(self) -> str:
        """Return what a person does, such as ``marine biologist``."""
        trade = self._rng.choice(TRADES)
        return f"{self._rng.choice(FIELDS)} {trade}" if self._rng.random() < 0.6 else trade

    def work(self) -> str:
        """Return the title of a book or a picture, such as ``The Silent Harbour``."""
        return f"The {self._rng.choice(ADJECTIVES)} {self._rng.choice(NOUNS)}"
