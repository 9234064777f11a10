import pytest

from portico.mrc.report.figures import (
    Change,
    Outcome,
    change,
    count_kinds,
    difference,
    groupings,
    num_words,
    outcome,
    question_word,
    score,
    significance,
)
from portico.mrc.report.statistics import mcnemar
from report_pages import result


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
        ({"predicted": "in Turku", "f1": 0.67, "predicted_span": None}, Outcome.BOUNDARY),
        ({"predicted": "1901", "predicted_span": None}, Outcome.WRONG_SPAN),
        ({"predicted": "in Turku", "f1": 0.67, "golds": (("Turku", -1),)}, Outcome.BOUNDARY),
    ],
)
def test_outcome(answers, expected):
    assert outcome(result(**answers)) is expected


def test_counts_leave_out_outcomes_that_did_not_occur():
    results = [result(predicted=""), result(), result()]
    assert list(count_kinds(map(outcome, results)).items()) == [(Outcome.EXACT, 2), (Outcome.FALSE_NO_ANSWER, 1)]
    assert count_kinds([]) == {}


RIGHT, CLOSE, WRONG = result(), result(predicted="in Turku", f1=0.67), result(predicted="1901")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (WRONG, RIGHT, Change.FIXED),
        (RIGHT, CLOSE, Change.BROKEN),
        (WRONG, CLOSE, Change.BETTER),
        (CLOSE, WRONG, Change.WORSE),
        (WRONG, result(predicted="Łuk"), Change.OTHER_ANSWER),
        (WRONG, WRONG, Change.UNCHANGED),
        (RIGHT, RIGHT, Change.UNCHANGED),
    ],
)
def test_change(first, second, expected):
    assert change(first, second) is expected


def test_counts_come_in_the_order_of_the_classes():
    assert list(count_kinds(map(change, [RIGHT, WRONG, WRONG], [WRONG, RIGHT, WRONG])).items()) == [
        (Change.FIXED, 1),
        (Change.BROKEN, 1),
        (Change.UNCHANGED, 1),
    ]


def test_difference():
    first, second = [RIGHT, CLOSE, WRONG, WRONG], [WRONG, RIGHT, RIGHT, WRONG]
    found = difference("a", first, second)
    assert (found.name, found.num_questions, found.num_fixed, found.num_broken) == ("a", 4, 2, 1)
    assert (found.first_exact, found.second_exact) == (25.0, 50.0)
    assert (found.first_f1, found.second_f1) == (pytest.approx(41.75), 50.0)
    assert found.f1_interval.low < found.second_f1 - found.first_f1 < found.f1_interval.high


def test_equal_runs_do_not_differ():
    found = difference("", [RIGHT, WRONG], [RIGHT, WRONG])
    assert found.f1_interval == found.exact_interval == (0.0, 0.0)
    assert significance([RIGHT, WRONG], [RIGHT, WRONG]) == (1.0, 1.0)


def test_significance_counts_what_was_fixed_and_what_broke():
    tested = significance([WRONG] * 12 + [RIGHT] * 3, [RIGHT] * 12 + [WRONG] * 3)
    assert tested.exact == mcnemar(12, 3)
    assert tested.f1 == pytest.approx(tested.exact, abs=0.01)


def groups(title, results):
    (grouping,) = [grouping for grouping in groupings(results) if grouping.title == title]
    return grouping.members(results)


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
        ("Kim was born where?", "where"),
        ("\u00bfD\u00f3nde naci\u00f3?", "where"),
        ("\u00bfCU\u00c1NTOS puntos?", "how many"),
        ("Wie viele Tore fielen?", "how many"),
        ("\u8c01\u5728\u56fe\u5c14\u5e93\u51fa\u751f\uff1f", "who"),
        ("\u4ed6\u4e3a\u4ec0\u4e48\u79bb\u5f00\uff1f", "why"),
        ("\u041a\u043e\u0433\u0434\u0430 \u043e\u043d \u0440\u043e\u0434\u0438\u043b\u0441\u044f?", "when"),
        ("\u092f\u0939 \u0915\u094c\u0928 \u0939\u0948?", "who"),
        ("\u092f\u0939 \u0915\u093f\u0928 \u0939\u0948?", "other"),
        ("Qu'est-ce que c'est?", "what"),
        ("", "other"),
    ],
)
def test_question_word(question, expected):
    assert question_word(question) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("one", 1), ("in  Turku 1901", 3), ("\u56fe\u5c14\u5e93", 3), ("\u56fe\u5c14\u5e93 1901", 4), ("", 0)],
)
def test_number_of_words(text, expected):
    assert num_words(text) == expected


def test_question_words_are_sorted_by_size():
    results = [result(question=question) for question in ("When?", "Where?", "Why?", "Where to?")]
    assert groups("By question word", results) == {"where": [1, 3], "when": [0], "why": [2]}


def test_optional_fields_are_grouped_by_if_a_question_has_them():
    titles = [grouping.title for grouping in groupings([result()])]
    assert "By question type" not in titles
    assert "By language" not in titles
    results = [result(question_type="place", language="fi"), result()]
    assert groups("By question type", results) == {"not given": [1], "place": [0]}
    assert groups("By language", results) == {"fi": [0], "not given": [1]}


def test_answer_lengths_are_in_order_and_start_with_no_answer():
    words = [1, 2, 3, 4, 5, 6, 10, 11, 99]
    results = [result(golds=((" ".join("x" * count), 0), ("other gold", 0))) for count in words]
    found = groups("By answer length", [*reversed(results), result(gold="", predicted="")])
    assert list(found.items()) == [
        ("no answer", [9]),
        ("1 word", [8]),
        ("2 words", [7]),
        ("3 words", [6]),
        ("4-5 words", [4, 5]),
        ("6-10 words", [2, 3]),
        ("11+ words", [0, 1]),
    ]


def test_passage_lengths_are_in_order():
    lengths = [10_000, 250, 249, 1_999, 999_999, 9_999]
    results = [result(context="Turku" + "x" * (length - 5)) for length in lengths]
    assert groups("By passage length", results) == {
        "under 250": [2],
        "250-499": [1],
        "1,000-1,999": [3],
        "5,000-9,999": [5],
        "10,000+": [0, 4],
    }


def test_answerability():
    results = [result(gold="", predicted=""), result(gold="", predicted=""), result()]
    assert list(groups("By answerability", results).items()) == [("an answer", [2]), ("no answer", [0, 1])]


def test_a_score_is_the_mean_of_its_questions():
    group = score("a", [result(), result(predicted="in Turku", f1=0.5), result(predicted="1901")])
    assert (group.name, group.num_questions, group.exact, group.f1) == ("a", 3, pytest.approx(100 / 3), 50.0)
    assert group.exact_interval == pytest.approx((6.15, 79.23), abs=0.01)
