import pytest

from portico.mrc.report.figures.outcomes import Outcome, outcome, outcome_counts
from reading_results import result


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, Outcome.EXACT),
        ({"gold": "", "predicted": ""}, Outcome.DECLINED),
        ({"predicted": "in Turku", "f1": 0.67}, Outcome.BOUNDARY),
        ({"predicted": "1901"}, Outcome.WRONG_SPAN),
        ({"gold": "born in", "predicted": "in Turku", "f1": 0.5}, Outcome.BOUNDARY),
        ({"gold": "born", "predicted": " in", "f1": 0.0}, Outcome.WRONG_SPAN),
        ({"predicted": ""}, Outcome.FALSE_NO_ANSWER),
        ({"gold": "", "predicted": "Turku"}, Outcome.MISSED_NO_ANSWER),
        ({"predicted": "in Turku", "f1": 0.67, "predicted_start": None}, Outcome.BOUNDARY),
        ({"predicted": "1901", "predicted_start": None}, Outcome.WRONG_SPAN),
        ({"predicted": "in Turku", "f1": 0.67, "golds": (("Turku", -1),)}, Outcome.BOUNDARY),
    ],
)
def test_outcome(answers, expected):
    assert outcome(result(**answers)) is expected


def test_counts_leave_out_what_did_not_happen():
    results = [result(predicted=""), result(), result()]
    assert list(outcome_counts(results).items()) == [(Outcome.EXACT, 2), (Outcome.FALSE_NO_ANSWER, 1)]
    assert outcome_counts([]) == {}
