import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.mrc.report.explorer import BYTES, Explorer, merge_marks
from portico.mrc.report.figures import Outcome, groupings, outcome
from report_pages import CONTEXT, HOSTILE, RESULTS, result

RANKING = sorted(Outcome, key=lambda kind: kind.is_right)


def data(results=RESULTS, max_bytes=BYTES, **changes):
    fields = {
        "runs": ["a"],
        "answered": [results],
        "kinds": [outcome(one) for one in results],
        "ranking": RANKING,
        "groupings": groupings(results),
        "max_bytes": max_bytes,
    }
    return Explorer(**{**fields, **changes})


def test_all_questions_are_there_in_their_order_and_share_their_passage():
    text, left_out = data().fit()
    read = json.loads(text)
    assert [question["id"] for question in read["questions"]] == [f"q{number}" for number in range(6)]
    assert read["contexts"] == [CONTEXT]
    assert left_out == {}
    kinds = [read["kinds"][question["kind"]]["label"] for question in read["questions"]]
    assert kinds == [
        "correct",
        "wrong span",
        "boundary",
        "false no-answer",
        "missed no-answer",
        "correct no-answer",
    ]


def test_a_question_has_all_fields():
    text, _ = data([result(predicted="in Turku", f1=2 / 3, title="T")]).fit()
    read = json.loads(text)
    (question,) = read["questions"]
    assert question["golds"] == ["Turku"]
    assert question["answers"] == [
        {
            "text": "in Turku",
            "placed": True,
            "outcome": list(Outcome).index(Outcome.BOUNDARY),
            "f1": 0.6667,
            "sure": 0.9,
            "odds": -1.5,
            "candidates": [["in Turku", 0.9, 3.5], ["", 0.1, 1.0]],
        }
    ]
    units = CONTEXT.encode("utf-16-le")
    marked = [(units[2 * start : 2 * end].decode("utf-16-le"), kinds) for start, end, kinds in question["marks"]]
    assert marked == [("in ", 2), ("Turku", 3)]
    slices = [read["groups"][place][group] for place, group in enumerate(question["groups"])]
    assert slices == ["where", "1 word", "under 250", "an answer"]


def test_the_data_contains_no_markup():
    text, _ = data([result(title=HOSTILE, question="<!--<script>")]).fit()
    assert "<" not in text
    assert json.loads(text)["questions"][0]["title"] == HOSTILE


def test_right_answers_are_left_out_first_and_counted():
    whole, _ = data().fit()
    limit = len(whole.encode()) - 900
    text, left_out = data(max_bytes=limit).fit()
    assert len(text.encode()) < limit + 900
    kept = [question["id"] for question in json.loads(text)["questions"]]
    assert set(kept) >= {"q1", "q2", "q3", "q4"}
    assert set(left_out) <= {Outcome.EXACT, Outcome.DECLINED}
    assert len(kept) + sum(left_out.values()) == 6
    html = data(max_bytes=limit).html()
    assert f"{sum(left_out.values())} of 6 questions are not listed" in html
    assert "left out" not in data().html()


def test_a_passage_that_does_not_fit_does_not_displace_others():
    results = [result(0, context="Turku" + "x" * 5000, predicted=""), result(1, predicted="")]
    text, left_out = data(results, max_bytes=2000).fit()
    read = json.loads(text)
    assert [question["id"] for question in read["questions"]] == ["q1"]
    assert read["contexts"] == [CONTEXT]
    assert left_out == {Outcome.FALSE_NO_ANSWER: 1}


def test_twelve_thousand_questions_fit():
    results = [result(number, context=f"{CONTEXT} {number // 10}") for number in range(12_000)]
    started = process_time()
    text, left_out = data(results, max_bytes=20 * BYTES).fit()
    assert process_time() - started < 20  # a slow search for question words once took minutes
    assert len(json.loads(text)["questions"]) == 12_000
    assert not left_out


spans = st.tuples(st.integers(-3, 43), st.integers(-3, 43)).map(lambda pair: (min(pair), max(pair)))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([[(1, 3), (1, 3), (2, 5)]], [(1, 2, 1), (2, 3, 1), (3, 5, 1)]),
        ([[(6, 12)], [(-3, 2)]], [(0, 2, 2), (6, 8, 1)]),
        ([[(2, 4)], [(3, 5)], [(4, 6)]], [(2, 3, 1), (3, 4, 3), (4, 5, 6), (5, 6, 4)]),
    ],
    ids=["several golds", "beyond", "three layers"],
)
def test_marked_stretches(layers, expected):
    assert merge_marks("abcdefgh", layers) == expected


@given(st.text(max_size=40), st.lists(st.lists(spans, max_size=4), min_size=1, max_size=3))
def test_every_utf16_unit_is_marked_like_its_character(context, layers):
    units = [number for number, character in enumerate(context) for _ in range(1 + (character > "\uffff"))]
    marks = [0] * len(units)
    previous = 0
    for start, end, kinds in merge_marks(context, layers):
        assert previous <= start < end
        previous = end
        marks[start:end] = [kinds] * (end - start)
    assert len(marks) == len(units)
    for unit, character in enumerate(units):
        kinds = [any(start <= character < end for start, end in ranges) for ranges in layers]
        assert marks[unit] == sum(1 << layer for layer, holds in enumerate(kinds) if holds)
