"""Questions grouped by what they have in common, and the scores of the groups."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from portico.mrc.report.figures.intervals import Interval, mean_intervals
from portico.mrc.report.figures.question_words import question_word
from portico.mrc.report.results import QuestionResult

NO_ANSWER = "no answer"

# Lower limit, and the name of the bin from there on.
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
# Chinese characters and kana are written without blanks; each counts as a word, as in evaluation scripts.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")


@dataclass(frozen=True, slots=True)
class Slicing:
    """One way to group questions.

    Args:
        title: Heading of the table.
        column: Heading of the groups' names.
        name_of: The group of a question.
        order: All names in their order; empty to have the largest group first.
    """

    title: str
    column: str
    name_of: Callable[[QuestionResult], str]
    order: tuple[str, ...] = ()

    def members(self, results: Sequence[QuestionResult]) -> dict[str, list[int]]:
        """Return the places in `results` of each group's questions, groups in their order, none empty."""
        found: dict[str, list[int]] = {}
        for place, result in enumerate(results):
            found.setdefault(self.name_of(result), []).append(place)
        rank = {name: place for place, name in enumerate(self.order)}
        return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], 0), -len(item[1]), item[0])))


@dataclass(frozen=True, slots=True)
class Group:
    """Scores of questions that share a property.

    Args:
        name: The property.
        count: How many questions share it, at least 1.
        exact: Mean exact match, 0..100.
        f1: Mean F1, 0..100.
        exact_interval: Bootstrap interval of the exact match.
        f1_interval: Bootstrap interval of F1.
    """

    name: str
    count: int
    exact: float
    f1: float
    exact_interval: Interval
    f1_interval: Interval


def score(name: str, results: Sequence[QuestionResult]) -> Group:
    """Return the mean scores of at least one result, with their intervals."""
    scores_Q2 = np.array([(100 * result.exact, 100 * result.f1) for result in results])
    exact, f1 = scores_Q2.mean(axis=0).tolist()
    return Group(name, len(results), exact, f1, *mean_intervals(scores_Q2))


def slicings(results: Sequence[QuestionResult]) -> list[Slicing]:
    """Return the ways to group these questions: those that rest on a field of the data only where it is filled."""
    ways = [_BY_QUESTION_WORD, _BY_ANSWER_LENGTH, _BY_CONTEXT_LENGTH, _BY_ANSWERABILITY]
    if any(result.question_type for result in results):
        ways.insert(1, _BY_QUESTION_TYPE)
    if any(result.language for result in results):
        ways.append(_BY_LANGUAGE)
    return ways


def num_words(text: str) -> int:
    """Return the number of words of a text; each Chinese or Japanese character counts as one."""
    return sum(1 for _ in _WORD.finditer(text))


def _bin(value: int, bins: Sequence[tuple[int, str]]) -> str:
    return next((name for limit, name in reversed(bins) if value >= limit), bins[0][1])


def _answer_length(result: QuestionResult) -> str:
    return _bin(num_words(result.golds[0][0]), _WORD_BINS) if result.golds else NO_ANSWER


_BY_QUESTION_WORD = Slicing("By question word", "asks", lambda result: question_word(result.question))
_BY_QUESTION_TYPE = Slicing("By question type", "type", lambda result: result.question_type or "not said")
_BY_ANSWERABILITY = Slicing(
    "By answerability",
    "holds",
    lambda result: "an answer" if result.golds else NO_ANSWER,
    ("an answer", NO_ANSWER),
)
_BY_ANSWER_LENGTH = Slicing(
    "By length of the answer", "expected", _answer_length, (NO_ANSWER, *(name for _, name in _WORD_BINS))
)
_BY_CONTEXT_LENGTH = Slicing(
    "By length of the passage",
    "characters",
    lambda result: _bin(len(result.context), _CHARACTER_BINS),
    tuple(name for _, name in _CHARACTER_BINS),
)
_BY_LANGUAGE = Slicing("By language", "language", lambda result: result.language or "not said")
