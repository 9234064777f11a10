import pytest

from portico.mrc.report import QuestionResult
from portico.mrc.report.breakdown import Group, by_answer_length, by_confidence, by_question_type, outcome_counts
from portico.mrc.report.question_types import question_type
from portico.mrc.report.results import Outcome, outcome
from portico.mrc.report.selection import best, near_misses, worst

CONTEXT = "Zoë Łuk was born in Turku in 1901."


def result(gold="Turku", predicted="Turku", **changes):
    golds = ((gold, CONTEXT.index(gold)),) if gold else ()
    start = CONTEXT.index(predicted) if predicted else None
    fields = {
        "id": "q1",
        "title": "",
        "question": "Where was she born?",
        "context": CONTEXT,
        "golds": golds,
        "predicted_text": predicted,
        "predicted_start": start,
        "predicted_end": None if start is None else start + len(predicted),
        "probability": 0.9,
        "null_odds": None,
        "exact": float(gold == predicted),
        "f1": float(gold == predicted),
    }
    return QuestionResult(**{**fields, **changes})


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, Outcome.EXACT),
        ({"gold": "", "predicted": ""}, Outcome.DECLINED),
        ({"gold": "Turku", "predicted": "in Turku", "f1": 0.67}, Outcome.BOUNDARY),
        ({"gold": "Turku", "predicted": "1901"}, Outcome.WRONG_SPAN),
        ({"gold": "born in", "predicted": "in Turku", "f1": 0.5}, Outcome.BOUNDARY),
        ({"gold": "born", "predicted": " in", "f1": 0.0}, Outcome.WRONG_SPAN),
        ({"gold": "Turku", "predicted": ""}, Outcome.MISSED),
        ({"gold": "", "predicted": "Turku"}, Outcome.ANSWERED_UNANSWERABLE),
        ({"predicted": "in Turku", "f1": 0.67, "predicted_start": None}, Outcome.BOUNDARY),
        ({"predicted": "1901", "predicted_start": None}, Outcome.WRONG_SPAN),
    ],
)
def test_outcome(answers, expected):
    assert outcome(result(**answers)) is expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who left?", "who"),
        ("To whom did she write?", "who"),
        ("In what year did those who stayed leave?", "when"),
        ("How many people left?", "how many"),
        ("How did they leave?", "how"),
        ("In which town?", "which"),
        ("The whole town left, why?", "why"),
        ("Name the somewhat older town.", "other"),
        ("¿Dónde nació?", "other"),
        ("", "other"),
    ],
)
def test_question_type(question, expected):
    assert question_type(question) == expected


def test_question_types_are_sorted_by_size_and_a_given_type_wins():
    results = [
        result(),
        result(exact=0.0, f1=0.5),
        result(question_type="place", exact=0.0, f1=0.25),
        result(question="When?"),
    ]
    assert by_question_type(results) == [
        Group("where", 2, 50.0, 75.0),
        Group("place", 1, 0.0, 25.0),
        Group("when", 1, 100.0, 100.0),
    ]


@pytest.mark.parametrize(
    ("num_words", "expected"),
    [
        (1, "1 word"),
        (2, "2 words"),
        (3, "3 words"),
        (4, "4-5 words"),
        (5, "4-5 words"),
        (6, "6-10 words"),
        (10, "6-10 words"),
        (11, "11+ words"),
        (99, "11+ words"),
    ],
)
def test_answer_length_bins(num_words, expected):
    (group,) = by_answer_length([result(golds=((" ".join("x" * num_words), 0), ("other gold", 0)))])
    assert group.name == expected


def test_answer_lengths_are_in_order_and_start_with_no_answer():
    results = [result(gold="born in Turku"), result(), result(gold="", predicted=""), result(gold="Zoë Łuk", f1=0.5)]
    assert by_answer_length(results) == [
        Group("no answer", 1, 100.0, 100.0),
        Group("1 word", 1, 100.0, 100.0),
        Group("2 words", 1, 0.0, 50.0),
        Group("3 words", 1, 0.0, 0.0),
    ]


def test_confidence_bins_are_half_open():
    results = [result(probability=probability) for probability in (1.0, 0.95, 0.949, 0.8, 0.5, 0.499, 0.0)]
    assert [(group.name, group.count) for group in by_confidence(results)] == [
        ("under 50%", 2),
        ("50-80%", 1),
        ("80-95%", 2),
        ("95% or more", 2),
    ]


def test_outcome_counts_leave_out_what_did_not_happen():
    results = [result(predicted=""), result(), result()]
    assert list(outcome_counts(results).items()) == [(Outcome.EXACT, 2), (Outcome.MISSED, 1)]


@pytest.mark.parametrize("group", [by_question_type, by_answer_length, by_confidence, outcome_counts])
def test_nothing_gives_no_groups(group):
    assert not group([])


def test_worst_are_wrong_ones_with_low_f1_then_high_confidence():
    results = [
        result(id="right"),
        result(id="declined", gold="", predicted=""),
        result(id="close", predicted="in Turku", f1=0.67),
        result(id="unsure", predicted="1901", probability=0.3),
        result(id="sure", predicted="1901", probability=0.9),
    ]
    assert [found.id for found in worst(results, 10)] == ["sure", "unsure", "close"]
    assert [found.id for found in worst(results, 1)] == ["sure"]


def test_near_misses_are_boundary_errors_the_closest_first():
    results = [
        result(id="far", predicted="born in Turku in 1901", f1=0.4),
        result(id="close", predicted="in Turku", f1=0.67),
        result(id="right"),
        result(id="wrong", predicted="1901"),
    ]
    assert [found.id for found in near_misses(results, 10)] == ["close", "far"]
    assert [found.id for found in near_misses(results, 1)] == ["close"]


def test_best_are_exact_answers_the_longest_first():
    results = [
        result(id="one"),
        result(id="two", gold="Zoë Łuk", predicted="Zoë Łuk"),
        result(id="declined", gold="", predicted=""),
        result(id="wrong", predicted="in Turku in 1901"),
    ]
    assert [found.id for found in best(results, 10)] == ["two", "one"]
