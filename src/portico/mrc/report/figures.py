"""The questions in numbers: what kind of result each is, and the scores of groups of them, of one run or of several.

Shape suffixes: Q questions.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import NamedTuple, TypeVar

import numpy as np

from portico.mrc.report.results import QuestionResult
from portico.mrc.report.statistics import mcnemar, mean_intervals, randomisation, score_intervals
from portico.report.page import Interval

NO_ANSWER = "no answer"

# Lower limit and name of each bin.
_WORD_BINS = ((1, "1 word"), (2, "2 words"), (3, "3 words"), (4, "4-5 words"), (6, "6-10 words"), (11, "11+ words"))
_CHARACTER_BINS = (
    (0, "under 250"),
    (250, "250-499"),
    (500, "500-999"),
    (1_000, "1,000-1,999"),
    (2_000, "2,000-4,999"),
    (5_000, "5,000-9,999"),
    (10_000, "10,000+"),
)
# Chinese characters and kana are written without spaces; each counts as a word, as in evaluation scripts.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")

# Thai, Chinese, Japanese and Korean do not separate all words by spaces, so each of their characters is a token.
# Elsewhere vowel signs and accents are part of a word although `\w` does not match them.
_UNSPACED = r"\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[\w\u0300-\u036f\u064b-\u065f\u0900-\u0dff])+")

Tokens = tuple[str, ...]


class Kind(Enum):
    """The class that a question falls into, with its label on the page and its meaning."""

    def __init__(self, label: str, meaning: str) -> None:
        self.label = label
        self.meaning = meaning

    @property
    def rank(self) -> int:
        return list(type(self)).index(self)

    @property
    def css_class(self) -> str:
        """The class by which the style sheets colour it."""
        return self.name.lower().replace("_", "-")


class Outcome(Kind):
    EXACT = ("correct", "equal to an accepted answer")
    DECLINED = ("correct no-answer", "the question has no answer, and the model gave none")
    BOUNDARY = ("boundary", "overlaps an accepted answer, but is too long or too short")
    WRONG_SPAN = ("wrong span", "text from elsewhere in the passage")
    FALSE_NO_ANSWER = ("false no-answer", "the question has an answer, but the model gave none")
    MISSED_NO_ANSWER = ("missed no-answer", "the question has no answer, but the model gave one")

    @property
    def is_right(self) -> bool:
        return self in (Outcome.EXACT, Outcome.DECLINED)


class Change(Kind):
    FIXED = ("fixed", "correct only in the second run")
    BROKEN = ("broken", "correct only in the first run")
    BETTER = ("better", "incorrect in both, but F1 rose")
    WORSE = ("worse", "incorrect in both, but F1 fell")
    OTHER_ANSWER = ("other answer", "a different text with the same scores")
    UNCHANGED = ("unchanged", "the same answer")


class Agreement(Kind):
    DISPUTED = ("some correct", "correct in some of the runs")
    UNSOLVED = ("none correct", "incorrect in every run")
    SOLVED = ("all correct", "correct in every run")


KindT = TypeVar("KindT", bound=Kind)


def outcome(result: QuestionResult) -> Outcome:
    if not result.golds:
        return Outcome.MISSED_NO_ANSWER if result.predicted_text else Outcome.DECLINED
    if result.exact:
        return Outcome.EXACT
    if not result.predicted_text:
        return Outcome.FALSE_NO_ANSWER
    # Without both positions, a common word is the best evidence.
    touches_gold = result.f1 > 0
    if result.predicted_span is not None and result.gold_spans:
        start, end = result.predicted_span
        touches_gold = any(start < gold_end and gold_start < end for gold_start, gold_end in result.gold_spans)
    return Outcome.BOUNDARY if touches_gold else Outcome.WRONG_SPAN


def change(first: QuestionResult, second: QuestionResult) -> Change:
    if bool(first.exact) != bool(second.exact):
        return Change.FIXED if second.exact else Change.BROKEN
    if first.f1 != second.f1:
        return Change.BETTER if second.f1 > first.f1 else Change.WORSE
    return Change.UNCHANGED if first.predicted_text == second.predicted_text else Change.OTHER_ANSWER


def agreement(results: Sequence[QuestionResult]) -> Agreement:
    """Return how the runs agree on one question, given the result of each."""
    num_right = sum(bool(result.exact) for result in results)
    if num_right == len(results):
        return Agreement.SOLVED
    return Agreement.DISPUTED if num_right else Agreement.UNSOLVED


def count_kinds(kinds: Iterable[KindT]) -> dict[KindT, int]:
    """Return how often each kind occurs, in the order of the class; kinds that do not occur are left out."""
    counts = Counter(kinds)
    return {kind: counts[kind] for kind in sorted(counts, key=lambda kind: kind.rank)}


@dataclass(frozen=True, slots=True)
class Grouping:
    """One way to group questions in a table.

    ``title`` is the heading of the table, ``column`` the heading of the column of names. Groups are in the order of
    their names in ``order``; if it is empty, the largest group comes first.
    """

    title: str
    column: str
    name_of: Callable[[QuestionResult], str]
    order: tuple[str, ...] = ()

    def members(self, results: Sequence[QuestionResult]) -> dict[str, list[int]]:
        """Return the indices in ``results`` of each group's questions, groups in their order, none empty."""
        found: dict[str, list[int]] = {}
        for index, result in enumerate(results):
            found.setdefault(self.name_of(result), []).append(index)
        rank = {name: place for place, name in enumerate(self.order)}
        return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], 0), -len(item[1]), item[0])))


def groupings(results: Sequence[QuestionResult]) -> list[Grouping]:
    """Return the ways to group these questions; by type and by language only if some question has one."""
    has = {
        "By question type": any(result.question_type for result in results),
        "By language": any(result.language for result in results),
    }
    return [grouping for grouping in _GROUPINGS if has.get(grouping.title, True)]


def num_words(text: str) -> int:
    """Return the number of words of a text; each Chinese or Japanese character counts as one."""
    return sum(1 for _ in _WORD.finditer(text))


def _bin(value: int, bins: Sequence[tuple[int, str]]) -> str:
    return next((name for limit, name in reversed(bins) if value >= limit), bins[0][1])


def _answer_length(result: QuestionResult) -> str:
    return _bin(num_words(result.golds[0][0]), _WORD_BINS) if result.golds else NO_ANSWER


def question_word(question: str) -> str:
    """Return the English equivalent of the first question word in some twenty languages, or "other".

    English words are looked for first, because a few of the others are also English words or names.
    """
    tokens = _tokens(question)
    return next((group for known in _load_phrases() if (group := _first_group(tokens, known))), "other")


def _first_group(tokens: Tokens, group_of_phrase: dict[Tokens, str]) -> str | None:
    """Return the group of the first known phrase, the longest at its position: "how many" wins over "how"."""
    longest = max(map(len, group_of_phrase))
    places = ((start, end) for start in range(len(tokens)) for end in range(start + longest, start, -1))
    return next((group for start, end in places if (group := group_of_phrase.get(tokens[start:end]))), None)


@cache
def _load_phrases() -> list[dict[Tokens, str]]:
    languages = json.loads(files(__package__).joinpath("question_words.json").read_text(encoding="utf-8"))
    return [
        {_tokens(phrase): group for group, phrases in groups.items() for phrase in phrases}
        for groups in languages.values()
    ]


def _tokens(text: str) -> Tokens:
    return tuple(_TOKEN.findall(text.lower()))


_GROUPINGS = (
    Grouping("By question word", "word", lambda result: question_word(result.question)),
    Grouping("By question type", "type", lambda result: result.question_type or "not given"),
    Grouping("By answer length", "length", _answer_length, (NO_ANSWER, *(name for _, name in _WORD_BINS))),
    Grouping(
        "By passage length",
        "characters",
        lambda result: _bin(len(result.context), _CHARACTER_BINS),
        tuple(name for _, name in _CHARACTER_BINS),
    ),
    Grouping(
        "By answerability",
        "passage has",
        lambda result: "an answer" if result.golds else NO_ANSWER,
        ("an answer", NO_ANSWER),
    ),
    Grouping("By language", "language", lambda result: result.language or "not given"),
)


class Group(NamedTuple):
    """Mean scores, 0..100, of at least one question, with their intervals."""

    name: str
    num_questions: int
    exact: float
    f1: float
    exact_interval: Interval
    f1_interval: Interval


def score(name: str, results: Sequence[QuestionResult]) -> Group:
    scores_Q2 = _scores(results)
    exact, f1 = scores_Q2.mean(axis=0).tolist()
    return Group(name, len(results), exact, f1, *score_intervals(scores_Q2, best=100.0))


class Difference(NamedTuple):
    """Mean scores, 0..100, of the same questions in two runs.

    The intervals are paired bootstrap intervals of the second score minus the first. Fixed are the questions that only
    the second run gets exactly right, broken those that only the first one does.
    """

    name: str
    num_questions: int
    first_exact: float
    second_exact: float
    first_f1: float
    second_f1: float
    exact_interval: Interval
    f1_interval: Interval
    num_fixed: int
    num_broken: int


def difference(name: str, first: Sequence[QuestionResult], second: Sequence[QuestionResult]) -> Difference:
    """Compare at least one question of two runs; both sequences hold the same questions in the same order."""
    first_Q2, second_Q2 = _scores(first), _scores(second)
    (first_exact, first_f1), (second_exact, second_f1) = (
        scores_Q2.mean(axis=0).tolist() for scores_Q2 in (first_Q2, second_Q2)
    )
    gains_Q2 = second_Q2 - first_Q2
    exact_interval, f1_interval = mean_intervals(gains_Q2)
    num_fixed, num_broken = int((gains_Q2[:, 0] > 0).sum()), int((gains_Q2[:, 0] < 0).sum())
    means = (first_exact, second_exact, first_f1, second_f1)
    return Difference(name, len(first), *means, exact_interval, f1_interval, num_fixed, num_broken)


class Significance(NamedTuple):
    """p-values of the differences of two runs: McNemar's exact test, and approximate randomisation for F1."""

    exact: float
    f1: float


def significance(first: Sequence[QuestionResult], second: Sequence[QuestionResult]) -> Significance:
    """Test the difference of two runs on at least one question, given as in :func:`difference`."""
    gains_Q = np.array([after.f1 - before.f1 for before, after in zip(first, second, strict=True)])
    changes = Counter(map(change, first, second))
    return Significance(mcnemar(changes[Change.FIXED], changes[Change.BROKEN]), randomisation(gains_Q))


def _scores(results: Sequence[QuestionResult]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([(100 * result.exact, 100 * result.f1) for result in results])
