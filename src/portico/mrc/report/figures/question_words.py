"""What a question asks for, by its question word."""

import json
import re
from functools import cache
from importlib.resources import files

# Thai, Chinese, Japanese and Korean are written without blanks between all words, so each of their characters is
# taken by itself. Elsewhere vowel signs and accents are part of a word though they are no letters.
_UNSPACED = r"\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[\w\u0300-\u036f\u064b-\u065f\u0900-\u0dff])+")

Tokens = tuple[str, ...]


def question_word(question: str) -> str:
    """Return the group a question belongs to by its first question word, "other" if it has none.

    The groups have English names; the words of some twenty languages are known. English ones are looked for first,
    because a few of the others are English words or names as well.
    """
    tokens = _tokens(question)
    return next((group for known in _known_phrases() if (group := _first(tokens, known))), "other")


def _first(tokens: Tokens, group_of_phrase: dict[Tokens, str]) -> str | None:
    """Return the group of the first known phrase, of several at one place the longest: "how many" is not "how"."""
    longest = max(map(len, group_of_phrase))
    for start in range(len(tokens)):
        for end in range(start + longest, start, -1):
            group = group_of_phrase.get(tokens[start:end])
            if group:
                return group
    return None


@cache
def _known_phrases() -> list[dict[Tokens, str]]:
    languages = json.loads(files(__package__).joinpath("question_words.json").read_text(encoding="utf-8"))
    return [
        {_tokens(phrase): group for group, phrases in groups.items() for phrase in phrases}
        for groups in languages.values()
    ]


def _tokens(text: str) -> Tokens:
    return tuple(_TOKEN.findall(text.lower()))
