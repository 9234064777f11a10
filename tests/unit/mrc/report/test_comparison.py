import json

import pytest

from portico.errors import InputError
from portico.mrc.report.comparison import align_runs
from report_pages import HOSTILE, Page, comparison_page, record, result

FIRST = [result(0), result(1, predicted="1901"), result(2, predicted="1901"), result(3, gold="", predicted="Turku")]
SECOND = [result(0, predicted="1901"), result(1), result(2, predicted="1901"), result(3, gold="", predicted="")]


def compared(first=FIRST, second=SECOND):
    before, after = record(first, name="one", settings={"seed": 1}), record(second, name="two", settings={"seed": 2})
    return Page(comparison_page(before, after))


def test_every_section_is_there():
    page = compared()
    assert page.sections == ["changes", "significance", "groups", "questions", "settings", "methods"]
    assert "4 questions: F1 rose by 25.0 to 50.0; 2 answers fixed, 1 broken." in page.text
    assert len(page.having("differences")) == 4


def test_only_changed_questions_are_shown_with_both_answers():
    page = compared()
    data = json.loads(page.data[0])
    assert data["runs"] == ["one", "two"]
    assert [question["id"] for question in data["questions"]] == ["q0", "q1", "q3"]
    kinds = [data["kinds"][question["kind"]]["label"] for question in data["questions"]]
    assert kinds == ["broken", "fixed", "fixed"]
    assert [answer["text"] for answer in data["questions"][0]["answers"]] == ["Turku", "1901"]
    assert [kinds for _, _, kinds in data["questions"][0]["marks"]] == [0b011, 0b100]


def test_equal_runs():
    page = compared(FIRST, FIRST)
    assert "4 questions: F1 is unchanged at 25.0; 0 answers fixed, 0 broken." in page.text
    assert "Both runs gave the same answer to every question." in page.text
    assert any("Neither difference is significant" in text for text in page.text)


def test_a_clear_difference_is_named():
    first = [result(number, predicted="1901") for number in range(40)]
    page = compared(first, [result(number) for number in range(40)])
    assert "The differences in F1 and exact match are statistically significant (p < 0.05)." in page.text
    assert "".join(page.text).count("p < 0.001") == 2


def test_several_runs_are_compared_with_the_first():
    clear = [[result(number, predicted=text) for number in range(40)] for text in ("1901", "Turku", "in Turku")]
    runs = [record(results, name=name) for results, name in zip(clear, ("base", "good", "same"), strict=True)]
    page = Page(comparison_page(*runs))
    assert page.sections == ["agreement", "changes", "groups", "questions", "methods"]
    text = "".join(page.text)
    assert "40 questions, 3 runs: good has the best F1, 100.0; changes are from base." in text
    assert "Runs whose F1 differs significantly from the F1 of base (p < 0.05): better: good." in text
    data = json.loads(page.data[0])
    assert data["runs"] == ["base", "good", "same"]
    assert {data["kinds"][question["kind"]]["label"] for question in data["questions"]} == {"some correct"}
    assert [answer["text"] for answer in data["questions"][0]["answers"]] == ["1901", "Turku", "in Turku"]
    assert len(page.having("several")) == 4


def test_several_equal_runs_and_their_settings():
    runs = [record(FIRST, name=str(seed), settings={"seed": seed}) for seed in range(3)]
    text = Page(comparison_page(*runs)).text
    assert any("No F1 differs significantly from the F1 of 0" in part for part in text)
    assert "0 | 1 | 2" in text


def test_scores_of_answering_trivially_are_shown_for_every_run():
    text = compared().text
    assert text.count("answering nothing: 25.0") == 4
    assert "always answering: 25.0" in text


def test_hostile_names_are_shown_as_text():
    page = Page(comparison_page(record(FIRST, name=HOSTILE), record(SECOND, name="two")))
    assert HOSTILE in "".join(page.text)


def test_runs_are_aligned_and_get_short_distinct_names():
    first, second = align_runs(
        record(FIRST, name="/runs/a/today/10-00"), record(SECOND[::-1], name="/runs/b/today/10-00")
    )
    assert second.results == SECOND
    assert (first.name, second.name) == ("a/today/10-00", "b/today/10-00")
    first, second = align_runs(record(FIRST, name="/runs/a"), record(SECOND, name="/runs/b"))
    assert (first.name, second.name) == ("a", "b")
    names = [run.name for run in align_runs(*(record(FIRST, name=f"/{end}") for end in ("b/x", "a/x", "a/y", "c")))]
    assert names == ["b/x", "a/x", "a/y", "/c"]
    first, second = align_runs(record(FIRST, name="/runs/a"), record(SECOND, name="/runs/a"))
    assert (first.name, second.name) == ("/runs/a (1st)", "/runs/a (2nd)")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (SECOND[:2], r"different questions: 2 are in both, 2 \(such as 'q2'\) only in the first and none only in the"),
        ([*SECOND, result(9)], r"different questions: 4 are in both, none only in the first and 1 \(such as 'q9'\)"),
        ([*SECOND[:3], result(3, predicted="")], "question 'q3' has a different set of accepted answers in each"),
        ([*SECOND[:3], result(3, gold="", question="Why?")], "question 'q3' has a different wording in each"),
        ([*SECOND[:3], result(3, gold="", context="Turku")], "question 'q3' has a different passage in each"),
    ],
)
def test_runs_on_different_data_are_rejected(second, message):
    with pytest.raises(InputError, match=message):
        align_runs(record(FIRST), record(second, name="/runs/b"))


def test_runs_without_questions_are_rejected():
    with pytest.raises(InputError, match="with at least one question"):
        align_runs(record([]), record([], name="/runs/b"))
