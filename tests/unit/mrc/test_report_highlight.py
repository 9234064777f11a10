import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.mrc.report.highlight import Piece, passage, pieces

spans = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))


def kinds(context, golds, predicted):
    return [(piece.text, "g" * piece.gold + "p" * piece.predicted) for piece in pieces(context, golds, predicted)]


@pytest.mark.parametrize(
    ("golds", "predicted", "expected"),
    [
        ([], None, [("abcdefgh", "")]),
        ([(2, 4)], None, [("ab", ""), ("cd", "g"), ("efgh", "")]),
        ([(2, 4)], (2, 4), [("ab", ""), ("cd", "gp"), ("efgh", "")]),
        ([(2, 5)], (3, 7), [("ab", ""), ("c", "g"), ("de", "gp"), ("fg", "p"), ("h", "")]),
        ([(0, 8)], (3, 4), [("abc", "g"), ("d", "gp"), ("efgh", "g")]),
        ([(1, 3), (1, 3), (2, 5)], None, [("a", ""), ("b", "g"), ("c", "g"), ("de", "g"), ("fgh", "")]),
        ([(6, 12)], (-3, 2), [("ab", "p"), ("cdef", ""), ("gh", "g")]),
    ],
    ids=["none", "gold", "equal", "overlap", "inside", "several golds", "beyond the passage"],
)
def test_pieces(golds, predicted, expected):
    assert kinds("abcdefgh", golds, predicted) == expected


@given(st.text(max_size=40), st.lists(spans, max_size=4), st.none() | spans)
def test_every_character_is_kept_and_marked_as_its_spans_say(context, golds, predicted):
    found = pieces(context, golds, predicted)
    assert "".join(piece.text for piece in found) == context
    marks = [(piece.gold, piece.predicted) for piece in found for _ in piece.text]
    assert marks == [
        (
            any(start <= index < end for start, end in golds),
            predicted is not None and predicted[0] <= index < predicted[1],
        )
        for index in range(len(context))
    ]


def test_an_empty_passage_has_no_pieces():
    assert pieces("", [], None) == []


def test_offsets_count_characters_beyond_the_basic_plane():
    assert pieces("\U0001f600\U0001f600Łódź", [(2, 6)], None)[1] == Piece("Łódź", gold=True, predicted=False)


def test_passage_is_escaped_inside_and_outside_marks():
    html = passage("<b>A&B</b>", [(3, 6)], (5, 7))
    assert html == (
        '&lt;b&gt;<mark class="gold">A&amp;</mark><mark class="gold predicted">B</mark>'
        '<mark class="predicted">&lt;</mark>/b&gt;'
    )


def test_control_characters_are_replaced():
    assert passage("a\x00b\x1fc\x9fd\te\nf", [], None) == "a\ufffdb\ufffdc\ufffdd\te\nf"


def text_of(html):
    return re.sub("<[^>]+>", "|", html)


def test_text_far_from_every_mark_is_cut_out():
    context = "a" * 1000 + "GOLD" + "b" * 3000 + "PRED" + "c" * 1000
    html = passage(context, [(1000, 1004)], (4004, 4008))
    assert text_of(html) == (
        f"|[... 600 characters ...]|{'a' * 400}|GOLD|{'b' * 400}|[... 2,200 characters ...]|{'b' * 400}|PRED|"
        f"{'c' * 400}|[... 600 characters ...]|"
    )


def test_a_passage_without_a_mark_keeps_its_beginning():
    assert text_of(passage("<" * 500, [], None)) == "&lt;" * 400 + "|[... 100 characters ...]|"
    assert passage("a" * 400, [], None) == "a" * 400
