"""The best spans of all examples with what is known of each.

Shape suffixes: E examples, N ranked spans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from portico.mrc.answers.choice import LITERAL_EMPTY
from portico.mrc.answers.span_table import RankedSpans, is_null
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
        columns = (spans.chars_N2, self.context_N, self.passage_N, spans.score_N, self.probability_N)
        for example_id, contexts, own in self.examples():
            rows = zip(*(column[own].tolist() for column in columns), strict=True)
            yield (
                example_id,
                [SpanAnswer(span_text(contexts[row[1]], *row[0]), *row[0], *row[1:]) for row in rows],
            )

    def examples(self) -> Iterator[tuple[str, Sequence[str], slice]]:
        """Yield identifier, contexts and the rows of the spans of every example."""
        rows = self.ranked.row_starts.tolist()
        for example_id, contexts, first, end in zip(self.example_ids, self.contexts_E, rows, rows[1:], strict=False):
            yield example_id, contexts, slice(first, end)


def first_of_each_text(contexts_E: list[Sequence[str]], ranked: RankedSpans, context_N: Int64s) -> Bools:
    """Tell which spans have a text that no better one of their example has, ``bool [N]``."""
    texts: set[tuple[int, str | None]] = set()
    is_first = []
    columns = (ranked.example_N, context_N, ranked.spans.chars_N2, is_null(ranked.spans))
    for example, context, (start, end), null in zip(*(column.tolist() for column in columns), strict=True):
        text = (example, None if null else span_text(contexts_E[example][context], start, end))
        is_first.append(text not in texts)
        texts.add(text)
    return np.array(is_first, np.bool_)


def span_text(context: str, start: int, end: int) -> str:
    """Return the text of a span."""
    return "empty" if start == LITERAL_EMPTY else context[start:end]
