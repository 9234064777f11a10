"""Scores of groups of questions."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from portico.mrc.report.question_types import question_type
from portico.mrc.report.results import Outcome, QuestionResult, outcome

NO_ANSWER = "no answer"

# Upper limit in words, and the name of the bin.
_LENGTH_BINS = ((1, "1 word"), (2, "2 words"), (3, "3 words"), (5, "4-5 words"), (10, "6-10 words"))
_LONGEST_BIN = "11+ words"
_CONFIDENCE_BINS = ((0.5, "under 50%"), (0.8, "50-80%"), (0.95, "80-95%"))
_HIGHEST_CONFIDENCE_BIN = "95% or more"


@dataclass(frozen=True, slots=True)
class Group:
    """Questions that share a property.

    Args:
        name: The property.
        count: How many questions share it, at least 1.
        exact: Mean exact match, 0..100.
        f1: Mean F1, 0..100.
    """

    name: str
    count: int
    exact: float
    f1: float


def score(name: str, results: Sequence[QuestionResult]) -> Group:
    """Return the mean scores of at least one result."""
    count = len(results)
    exact = 100 * sum(result.exact for result in results) / count
    return Group(name, count, exact, 100 * sum(result.f1 for result in results) / count)


def by_question_type(results: Sequence[QuestionResult]) -> list[Group]:
    """Return the scores of each question type, the most frequent first."""
    groups = _scores_by(results, lambda result: result.question_type or question_type(result.question))
    return sorted(groups, key=lambda group: (-group.count, group.name))


def by_answer_length(results: Sequence[QuestionResult]) -> list[Group]:
    """Return the scores by the first gold answer's number of words, the shortest first."""
    order = [NO_ANSWER, *(name for _, name in _LENGTH_BINS), _LONGEST_BIN]
    return sorted(_scores_by(results, _length_bin), key=lambda group: order.index(group.name))


def by_confidence(results: Sequence[QuestionResult]) -> list[Group]:
    """Return the scores by the model's confidence in its answer, the lowest first."""
    order = [*(name for _, name in _CONFIDENCE_BINS), _HIGHEST_CONFIDENCE_BIN]
    return sorted(_scores_by(results, _confidence_bin), key=lambda group: order.index(group.name))


def outcome_counts(results: Sequence[QuestionResult]) -> dict[Outcome, int]:
    """Return how often each outcome occurred, in the order of `Outcome`, without those that never did."""
    counts = Counter(outcome(result) for result in results)
    return {kind: counts[kind] for kind in Outcome if counts[kind]}


def _scores_by(results: Sequence[QuestionResult], name_of: Callable[[QuestionResult], str]) -> list[Group]:
    members: dict[str, list[QuestionResult]] = {}
    for result in results:
        members.setdefault(name_of(result), []).append(result)
    return [score(name, group) for name, group in members.items()]


def _length_bin(result: QuestionResult) -> str:
    if not result.golds:
        return NO_ANSWER
    num_words = len(result.golds[0][0].split())
    return next((name for limit, name in _LENGTH_BINS if num_words <= limit), _LONGEST_BIN)


def _confidence_bin(result: QuestionResult) -> str:
    return next((name for limit, name in _CONFIDENCE_BINS if result.probability < limit), _HIGHEST_CONFIDENCE_BIN)
