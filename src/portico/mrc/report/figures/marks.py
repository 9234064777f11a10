"""Where a passage is marked, and with what."""

from collections.abc import Sequence
from itertools import pairwise

from portico.mrc.report.results import Span

Stretch = tuple[int, int, int]


def marked_stretches(context: str, layers: Sequence[Sequence[Span]]) -> list[Stretch]:
    """Return the marked stretches of a passage, in order and without overlap.

    Args:
        context: The passage.
        layers: Character ranges, ends exclusive, of each kind of mark; ranges may overlap, also within a layer, and
            what lies outside of the passage is not marked.

    Returns:
        `(start, end, kinds)`: offsets in UTF-16 units, as a browser counts them, and bit `i` of `kinds` for layer
        `i`.
    """
    spans = [
        (max(start, 0), min(end, len(context)), 1 << layer)
        for layer, ranges in enumerate(layers)
        for start, end in ranges
    ]
    edges = sorted({edge for start, end, _ in spans if start < end for edge in (start, end)})
    stretches = []
    for start, end in pairwise(edges):
        kinds = 0
        for span_start, span_end, kind in spans:
            if span_start <= start < span_end:
                kinds |= kind
        if kinds:
            stretches.append((start, end, kinds))
    units = _utf16_offsets(context, edges)
    return [(units[start], units[end], kinds) for start, end, kinds in stretches]


def _utf16_offsets(text: str, places: Sequence[int]) -> dict[int, int]:
    """Return for each character offset, ascending, that in UTF-16 units."""
    offsets, place, unit = {}, 0, 0
    for wanted in places:
        # Only characters beyond the basic plane take two units.
        unit += wanted - place + sum(character > "\uffff" for character in text[place:wanted])
        place = wanted
        offsets[wanted] = unit
    return offsets
