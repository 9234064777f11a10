"""The best spans of all examples with what is known of each.

Shape suffixes: E examples, N ranked spans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from portico.mrc.answers.span_table import RankedSpans, is_null
from portico.mrc.answers.span_texts import span_texts
from portico.mrc.arrays import Bools, Int64s


@dataclass(frozen=True)
class SpanAnswer:
    """A possible answer.

    Attributes:
        text: Its text, ``""`` for "no answer".
        start: First character in its context.
        end: The character after its last.
        context_index: Which of the question's contexts it stands in.
        passage_index: Which passage of the document holds it, -1 for none.
        score: What it was ranked by.
        probability: That it is the answer.
    """

    text: str
    start: int
    end: int
    context_index: int
    passage_index: int
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The best spans of every example, best first.

    Attributes:
        example_ids: Identifiers of the examples.
        contexts_E: The contexts of each example.
        ranked: Their best spans.
        context_N: Which of the contexts each span stands in, ``int64 [N]``.
        passage_N: Which passage holds it, ``int64 [N]``, -1 for none.
        probability_N: Probability of each span among those of its example, ``float64 [N]``.
    """

    example_ids: list[str]
    contexts_E: list[Sequence[str]]
    ranked: RankedSpans
    context_N: Int64s
    passage_N: Int64s
    probability_N: npt.NDArray[np.float64]

    def __iter__(self) -> Iterator[tuple[str, list[SpanAnswer]]]:
        """Yield identifier and possible answers of every example, best first."""
        spans = self.ranked.spans
        numbers = (*spans.chars_N2.T, self.context_N, self.passage_N, spans.score_N, self.probability_N)
        for example_id, rows in self.examples():
            columns = (column[rows].tolist() for column in numbers)
            yield example_id, [SpanAnswer(*values) for values in zip(self.texts(rows), *columns, strict=True)]

    def examples(self) -> Iterator[tuple[str, slice]]:
        """Yield identifier and the rows of the spans of every example."""
        rows = self.ranked.row_starts.tolist()
        for example_id, first, end in zip(self.example_ids, rows, rows[1:], strict=False):
            yield example_id, slice(first, end)

    def texts(self, rows: slice) -> list[str]:
        """Return the texts of some spans."""
        example_N, chars_N2 = self.ranked.example_N[rows], self.ranked.spans.chars_N2[rows]
        return span_texts(self.contexts_E, example_N, self.context_N[rows], chars_N2)


def first_of_each_text(contexts_E: list[Sequence[str]], ranked: RankedSpans, context_N: Int64s) -> Bools:
    """Tell which spans have a text that no better one of their example has, ``bool [N]``."""
    texts = span_texts(contexts_E, ranked.example_N, context_N, ranked.spans.chars_N2)
    seen: set[tuple[int, bool, str]] = set()
    is_first = []
    for text in zip(ranked.example_N.tolist(), is_null(ranked.spans).tolist(), texts, strict=True):
        is_first.append(text not in seen)
        seen.add(text)
    return np.array(is_first, np.bool_)
