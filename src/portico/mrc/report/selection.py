"""Which questions are worth reading."""

from collections.abc import Sequence

from portico.mrc.report.results import Outcome, QuestionResult, outcome


def worst(results: Sequence[QuestionResult], limit: int) -> list[QuestionResult]:
    """Return wrong answers, lowest F1 first, among equals the most confident first."""
    wrong = [result for result in results if not outcome(result).is_right]
    return sorted(wrong, key=lambda result: (result.f1, -result.probability))[:limit]


def near_misses(results: Sequence[QuestionResult], limit: int) -> list[QuestionResult]:
    """Return answers that overlap the gold one but are not equal to it, highest F1 first."""
    close = [result for result in results if outcome(result) is Outcome.BOUNDARY]
    return sorted(close, key=lambda result: (-result.f1, -result.probability))[:limit]


def best(results: Sequence[QuestionResult], limit: int) -> list[QuestionResult]:
    """Return exact answers, the longest first, since these are the hardest to get right."""
    right = [result for result in results if outcome(result) is Outcome.EXACT]
    return sorted(right, key=lambda result: (-len(result.predicted_text.split()), -result.probability))[:limit]
