"""What a question asks for, by its question word."""

import json
import re
from functools import cache
from importlib.resources import files

# These are written without blanks between words, so a word may begin and end anywhere.
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")

Words = tuple[re.Pattern[str], list[str]]


def question_word(question: str) -> str:
    """Return the group a question belongs to by its first question word, "other" if it has none.

    The groups have English names; the words of some twenty languages are known. English ones are looked for first,
    because a few of the others are English words or names as well.
    """
    for pattern, groups in _known_words():
        match = pattern.search(question)
        if match and match.lastindex:
            return groups[match.lastindex - 1]
    return "other"


@cache
def _known_words() -> list[Words]:
    languages = json.loads(files(__package__).joinpath("question_words.json").read_text(encoding="utf-8"))
    return [_compiled(words) for words in languages.values()]


def _compiled(words: dict[str, list[str]]) -> Words:
    group_of_phrase = {phrase: group for group, phrases in words.items() for phrase in phrases}
    # Longer phrases first, so that "how many" is not read as "how".
    phrases = sorted(group_of_phrase, key=len, reverse=True)
    pattern = re.compile("|".join(f"({_pattern(phrase)})" for phrase in phrases), re.IGNORECASE)
    return pattern, [group_of_phrase[phrase] for phrase in phrases]


def _pattern(phrase: str) -> str:
    return re.escape(phrase) if _UNSPACED.search(phrase) else rf"\b{re.escape(phrase)}\b"
