"""A passage with the gold and the predicted spans marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from portico.mrc.report.markup import escaped

Span = tuple[int, int]

# Text farther than this from every marked span is cut out, in characters.
_KEPT_AROUND = 400


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a passage that is marked throughout in the same way."""

    text: str
    gold: bool
    predicted: bool


def pieces(context: str, golds: Sequence[Span], predicted: Span | None) -> list[Piece]:
    """Split a passage where a span begins or ends; the pieces' texts joined give the passage.

    Args:
        context: The passage.
        golds: Character ranges of the gold answers, ends exclusive; they may overlap.
        predicted: Character range of the prediction, or None.
    """
    predictions = [] if predicted is None else [predicted]
    edges = {0, len(context)}
    edges.update(min(max(edge, 0), len(context)) for span in (*golds, *predictions) for edge in span)
    ordered = sorted(edges)
    return [
        Piece(context[start:end], _covered(start, golds), _covered(start, predictions))
        for start, end in pairwise(ordered)
    ]


def passage(context: str, golds: Sequence[Span], predicted: Span | None) -> str:
    """Return the passage as HTML; parts far from every marked span are cut out."""
    parts = pieces(context, golds, predicted)
    last = len(parts) - 1
    return "".join(
        _marked(part) if part.gold or part.predicted else _unmarked(part.text, index == 0, index == last)
        for index, part in enumerate(parts)
    )


def _covered(position: int, spans: Sequence[Span]) -> bool:
    return any(start <= position < end for start, end in spans)


def _marked(piece: Piece) -> str:
    classes = " ".join(name for name in ("gold", "predicted") if getattr(piece, name))
    return f'<mark class="{classes}">{escaped(piece.text)}</mark>'


def _unmarked(text: str, is_first: bool, is_last: bool) -> str:
    head = "" if is_first and not is_last else text[:_KEPT_AROUND]
    tail = "" if is_last else text[-_KEPT_AROUND:]
    num_cut = len(text) - len(head) - len(tail)
    if num_cut <= 0:
        return escaped(text)
    return f'{escaped(head)}<span class="cut">[... {num_cut:,} characters ...]</span>{escaped(tail)}'
