import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.mrc.report.figures.marks import marked_stretches

spans = st.tuples(st.integers(-3, 43), st.integers(-3, 43)).map(lambda pair: (min(pair), max(pair)))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([[], []], []),
        ([[(2, 4)], []], [(2, 4, 1)]),
        ([[(2, 4)], [(2, 4)]], [(2, 4, 3)]),
        ([[(2, 5)], [(3, 7)]], [(2, 3, 1), (3, 5, 3), (5, 7, 2)]),
        ([[(0, 8)], [(3, 4)]], [(0, 3, 1), (3, 4, 3), (4, 8, 1)]),
        ([[(1, 3), (1, 3), (2, 5)]], [(1, 2, 1), (2, 3, 1), (3, 5, 1)]),
        ([[(6, 12)], [(-3, 2)]], [(0, 2, 2), (6, 8, 1)]),
        ([[(2, 4)], [(3, 5)], [(4, 6)]], [(2, 3, 1), (3, 4, 3), (4, 5, 6), (5, 6, 4)]),
        ([[(3, 3)], [(9, 12)]], []),
    ],
    ids=["none", "gold", "equal", "overlap", "inside", "several golds", "beyond", "three layers", "empty and outside"],
)
def test_marked_stretches(layers, expected):
    assert marked_stretches("abcdefgh", layers) == expected


@given(st.text(max_size=40), st.lists(st.lists(spans, max_size=4), min_size=1, max_size=3))
def test_every_unit_is_marked_as_the_spans_of_its_character_say(context, layers):
    units = [number for number, character in enumerate(context) for _ in range(1 + (character > "\uffff"))]
    marks = [0] * len(units)
    previous = 0
    for start, end, kinds in marked_stretches(context, layers):
        assert previous <= start < end
        previous = end
        marks[start:end] = [kinds] * (end - start)
    assert len(marks) == len(units)
    for unit, character in enumerate(units):
        kinds = [any(start <= character < end for start, end in ranges) for ranges in layers]
        assert marks[unit] == sum(1 << layer for layer, holds in enumerate(kinds) if holds)


def test_offsets_count_as_a_browser_does():
    assert marked_stretches("\U0001f600a\U0001f600bc", [[(1, 4)], [(4, 5)]]) == [(2, 6, 1), (6, 7, 2)]
