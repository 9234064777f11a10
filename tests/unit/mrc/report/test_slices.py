import pytest

from portico.mrc.report.figures.question_words import question_word
from portico.mrc.report.figures.slices import num_words, score, slicings
from reading_results import result


def groups(title, results):
    (slicing,) = [slicing for slicing in slicings(results) if slicing.title == title]
    return slicing.members(results)


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


def test_fields_of_the_data_are_grouped_by_where_they_are_filled():
    titles = [slicing.title for slicing in slicings([result()])]
    assert "By question type" not in titles
    assert "By language" not in titles
    results = [result(question_type="place", language="fi"), result()]
    assert groups("By question type", results) == {"not said": [1], "place": [0]}
    assert groups("By language", results) == {"fi": [0], "not said": [1]}


def test_answer_lengths_are_in_order_and_start_with_no_answer():
    words = [1, 2, 3, 4, 5, 6, 10, 11, 99]
    results = [result(golds=((" ".join("x" * count), 0), ("other gold", 0))) for count in words]
    found = groups("By length of the answer", [*reversed(results), result(gold="", predicted="")])
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
    assert groups("By length of the passage", results) == {
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
    assert (group.name, group.count, group.exact, group.f1) == ("a", 3, pytest.approx(100 / 3), 50.0)
    assert group.exact_interval == (0.0, 100.0)
