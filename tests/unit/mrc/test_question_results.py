import pytest

from portico.mrc.question_results import question_result
from portico.mrc.report import Candidate

EXAMPLE = {
    "id": "q0",
    "title": None,
    "context": "Zoë was born in Turku in 1901.",
    "question": "Where?",
    "answers": {"text": ["Turku"], "answer_start": [16]},
    "language": "en",
}
NBEST = [
    {"text": "", "start_logit": 2.0, "end_logit": 1.0, "probability": 0.6},
    {"start_logit": 1.5, "end_logit": 1.0, "text": "in Turku", "probability": 0.3},
    {"start_logit": 1.0, "end_logit": 1.0, "text": "1901", "probability": 0.1},
]


def joined(**changes):
    return question_result(EXAMPLE, **{"text": "", "span": None, "nbest": NBEST, "null_odds": 0.5, **changes})


def test_null_answer_keeps_scores_of_best_span():
    result = joined()
    assert (result.exact, result.f1, result.probability, result.null_odds) == (0.0, 0.0, 0.6, 0.5)
    assert result.if_answered == (0.0, pytest.approx(2 / 3))
    assert result.nbest[1] == Candidate("in Turku", 0.3, 2.5)
    assert (result.title, result.language, result.golds) == ("", "en", (("Turku", 16),))
    assert result.predicted_span is None


def test_answer_keeps_its_span():
    result = joined(text="Turku", span=(16, 21))
    assert (result.exact, result.f1, result.predicted_span) == (1.0, 1.0, (16, 21))
    assert result.probability == 0.0  # it is among no candidates


def test_answers_without_candidates():
    result = joined(text="1901", nbest=None)
    assert (result.probability, result.nbest, result.if_answered) == (None, (), None)


def test_empty_candidates_have_no_answer():
    assert joined(nbest=NBEST[:1]).if_answered == (0.0, 0.0)
    assert joined(nbest=[]).if_answered == (0.0, 0.0)


def test_five_candidates_are_kept_with_their_scores():
    records = [{"text": str(number), "probability": 0.1, "score": number} for number in range(9)]
    assert joined(nbest=records).nbest == tuple(Candidate(str(number), 0.1, number) for number in range(5))
    assert joined(nbest=[{"text": "a", "probability": 0.1}]).nbest == (Candidate("a", 0.1, None),)
