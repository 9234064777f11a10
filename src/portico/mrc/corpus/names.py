# ruff: noqa: RUF001 (syllables of other scripts look like Latin letters on purpose)
"""Proper names put together from syllables, with a side (training or validation) built into each of them."""

from dataclasses import dataclass
from random import Random
from zlib import crc32


@dataclass(frozen=True)
class Syllables:
    """The parts of one naming tradition: a name is a start, perhaps a middle, and an end.

    Args:
        starts: First syllables, capitalised.
        middles: Inner syllables.
        ends: Last syllables.
    """

    starts: tuple[str, ...]
    middles: tuple[str, ...]
    ends: tuple[str, ...]


def _syllables(starts: str, middles: str, ends: str) -> Syllables:
    return Syllables(tuple(starts.split()), tuple(middles.split()), tuple(ends.split()))


LATIN = _syllables(
    "Ar Bel Cor Dan El Far Gal Hal Ir Jas Kel Lor Mar Nor Or Per Quin Ros Sal Tor Ul Ver Wil Yor Zan",
    "a ba da di en er ga i la li ma mi no o ra ri sa ta ti vo",
    "bert ciel dor fen gan kin lan low man mond nel rick ros sby ston ta ven wick win worth",
)
NORDIC = _syllables(
    "Åk Bjø Dag Ei Fjö Grø Hjá Ing Jör Kå Lø My Nå Ør Rø Sø Thó Tø Ul Væ",
    "a da ga gi ke la le mi na ri ro ta ve vi",
    "berg by dal fjord gård heim holm lund mar nes rík sen sjö sund vik vör",
)
SLAVIC = _syllables(
    "Bo Bře Cze Dra Dvo Hra Ja Jiř Ka Kra Lju Łu Mi Mla Ni Ode Pře Ra Sta Šte Vla Wła Zdě Zo Že",
    "bo da dě ji li ła mi ne ni ro sla ši ti va zi",
    "bor cław ček dan grad ka kov lav mír na nek nica rad ský slav šov tín wicz za zno",
)
ROMANCE = _syllables(
    "Al Bé Cá Dé Es Fé Gon Hé Isa José Le Már Né Óli Pé Quei Ré São Té Va Ximé",
    "a be ça ci di lé li na ní ra re ri ro sa ti vá zo",
    "bal ção cés dez dina gal lia lón mes nez ños que rêa res rra són tana tes vier zuela",
)
TURKIC = _syllables(
    "Ay Bü Çe Da Eğ Fı Gü Ha İn Ka Kü Öz Sa Şe Ta Tü Ul Ya Yı Zü",
    "ba de dı ga le lı mü ra rı sa tü ya zı",
    "bay can çı dağ gül han kan kaya lar lik man mış nur oğlu pınar su şen taş yar yurt",
)
CYRILLIC = _syllables(
    "Ал Бе Ва Га Дми Ев Жу Зо Ива Ка Ле Ми На Оле Пе Ру Са Та Фе Юр",
    "ва ге да же ли ма ми не ни ро са ти",
    "бор вич град дин ев ка кин лов мир на нов рин сов ск тин цев",
)
GREEK = _syllables(
    "Αλ Βα Γε Δη Ελ Ζα Ηλ Θε Ιω Κα Λε Με Νι Ξε Ορ Πα Ρο Στα Τρι Φι",
    "βα γο δω κα λι μα νι ρι σα τα φι",
    "άκης δης κος λος μος νης νία ος πούλου ράς ρία σης στη τός φία",
)
TRADITIONS = (LATIN, NORDIC, SLAVIC, ROMANCE, TURKIC, CYRILLIC, GREEK)
# Latin names without accents are the most frequent, as in an English encyclopaedia.
WEIGHTS = (8, 3, 3, 3, 3, 1, 1)

VALIDATION_SHARE = 5
"""One name in this many belongs to validation."""


def is_validation_name(name: str) -> bool:
    """Tell which side a name belongs to.

    The checksum of the name decides, so the two sides are disjoint whatever the seed and the size of the corpus.
    """
    return crc32(name.encode()) % VALIDATION_SHARE == 0


class NameMaker:
    """Makes names of one side only.

    Args:
        rng: Source of every choice.
        validation: Make validation names; otherwise training names.
    """

    def __init__(self, rng: Random, *, validation: bool) -> None:
        self._rng = rng
        self._validation = validation

    def name(self) -> str:
        """Return one capitalised word, such as ``Kelmarfen`` or ``Brodaček``."""
        while True:
            parts = self._rng.choices(TRADITIONS, WEIGHTS)[0]
            middle = self._rng.choice(parts.middles) if self._rng.random() < 0.5 else ""
            name = self._rng.choice(parts.starts) + middle + self._rng.choice(parts.ends)
            if is_validation_name(name) is self._validation:
                return name
