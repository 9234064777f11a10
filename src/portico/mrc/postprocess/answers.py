"""The texts of spans.

Shape suffixes: E examples, N spans.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from portico.mrc.arrays import Bools, Floats, Int32s, Int64s
from portico.mrc.postprocess.ranking import RankedSpans, Spans, is_null
from portico.mrc.target_type import TargetType

LITERAL_EMPTY = -1
"""Both characters of the span that stands for the text "empty"."""


def span_texts(
    contexts_E: Sequence[Sequence[str]], example_N: Int64s, context_N: Int64s, chars_N2: Int32s
) -> list[str]:
    """Return the text of every span, ``N`` of them.

    Args:
        contexts_E: The contexts of each example.
        example_N: The example of each span, ``int64 [N]``.
        context_N: Which of its contexts it stands in, ``int64 [N]``.
        chars_N2: Its characters there, ``[start, end)``, ``int32 [N, 2]``.
    """
    starts, ends = chars_N2.T.tolist()
    return [
        "empty" if start == LITERAL_EMPTY else contexts_E[example][context][start:end]
        for example, context, start, end in zip(example_N.tolist(), context_N.tolist(), starts, ends, strict=True)
    ]


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


def has_text(spans: Spans) -> Bools:
    """Tell which spans have a text; "no answer" has none, ``bool [N]``."""
    start_N, end_N = spans.chars_N2.T
    textual_N: Bools = (end_N > start_N) | (start_N == LITERAL_EMPTY)
    return textual_N


def with_literal_empty(ranked: RankedSpans) -> tuple[RankedSpans, Bools]:
    """Put a span of score 0 that reads "empty" before the others of every example without a text to offer.

    So does the QA example of transformers, where no span was found, or a single one without text.

    Returns:
        The spans, and which examples were given one, ``bool [E]``.
    """
    texts = np.concatenate([[0], np.cumsum(has_text(ranked.spans))])
    texts_E = texts[ranked.row_starts[1:]] - texts[ranked.row_starts[:-1]]
    needs_E = (ranked.counts_E <= 1) & (texts_E == 0)
    if not needs_E.any():
        return ranked, needs_E
    before = ranked.row_starts[:-1][needs_E]
    chars_N2, *others = ranked.spans.columns()
    spans = Spans(
        np.insert(chars_N2, before, LITERAL_EMPTY, axis=0), *(np.insert(other, before, 0, axis=0) for other in others)
    )
    return RankedSpans(spans, ranked.row_starts + np.concatenate([[0], np.cumsum(needs_E)])), needs_E


@dataclass(frozen=True, eq=False)
class Choice:
    """The answer to every question.

    Attributes:
        span_E: The span with the best text, ``int64 [E]``, -1 where there is none.
        null_odds_E: By how much the score of "no answer" exceeds that span's, ``float64 [E]``; where there is none,
            its own score; ``None`` if "no answer" cannot be predicted.
        threshold: "No answer" is predicted where the odds exceed it.
        type_E: The kind of answer (:class:`~portico.mrc.target_type.TargetType`), ``int64 [E]``.
    """

    span_E: Int64s
    null_odds_E: npt.NDArray[np.float64] | None
    threshold: float
    type_E: Int64s

    @property
    def chosen_E(self) -> Int64s:
        """The span that is the answer, ``int64 [E]``, -1 where no span is."""
        is_span_E = self.type_E == TargetType.SPAN_ANSWER
        if self.null_odds_E is not None:
            is_span_E &= ~(self.null_odds_E > self.threshold)
        return np.where(is_span_E, self.span_E, -1)


def choose(ranked: RankedSpans, nulls: Spans | None, threshold: float, type_E: Int64s) -> Choice:
    """Choose between spans and "no answer".

    Args:
        ranked: The spans.
        nulls: "No answer" of every example; ``None`` if it cannot be predicted.
        threshold: "No answer" is the answer where its score exceeds the span's by more than this.
        type_E: The kind of answer, ``int64 [E]``.
    """
    if nulls is None:
        return Choice(np.where(ranked.counts_E > 0, ranked.row_starts[:-1], -1), None, threshold, type_E)
    textual = np.append(np.flatnonzero(has_text(ranked.spans)), len(ranked.spans))
    best_E = textual[np.searchsorted(textual, ranked.row_starts[:-1])]
    found_E = best_E < ranked.row_starts[1:]
    odds_E = nulls.score_N.copy()
    best = best_E[found_E]
    # One logit after the other, as transformers does it: their rounded sum may differ in the last bit.
    odds_E[found_E] -= ranked.spans.start_logit_N[best]
    odds_E[found_E] -= ranked.spans.end_logit_N[best]
    return Choice(np.where(found_E, best_E, -1), odds_E.astype(np.float64), threshold, type_E)


_TYPE_TEXTS = {TargetType.YES: "yes", TargetType.NO: "no"}


NBestRecord: TypeAlias = Mapping[str, str | float]


_EXAMPLES_PER_BLOCK = 512  # bounds the memory for texts


@dataclass(frozen=True, eq=False)
class NBestLists:
    """The best spans of every example, best first.

    Args:
        shortlist: The spans.
        logit_names: What the scores of a span's first and last token are called.
        of_no_span: The list of an example without any span.
    """

    shortlist: Shortlist
    logit_names: tuple[str, str]
    of_no_span: Sequence[NBestRecord]

    def __iter__(self) -> Iterator[tuple[str, list[NBestRecord]]]:
        """Yield identifier and records of one example after the other."""
        for example_id, own in self.shortlist.examples():
            yield example_id, self._records(own)

    def json_lists(self) -> Iterator[tuple[str, str]]:
        """Yield identifier and list of one example after the other, as JSON within a mapping of indent 4."""
        examples = list(self.shortlist.examples())
        for first in range(0, len(examples), _EXAMPLES_PER_BLOCK):
            yield from self._block_json(examples[first : first + _EXAMPLES_PER_BLOCK])

    def _block_json(self, examples: Sequence[tuple[str, slice]]) -> Iterator[tuple[str, str]]:
        rows = slice(examples[0][1].start, examples[-1][1].stop)
        values = self._values_json(rows)
        begins = self.shortlist.ranked.spans.chars_N2[rows, 0].tolist()
        ids = scalars_json([example_id for example_id, _ in examples])
        for example_id, (_, own) in zip(ids, examples, strict=True):
            first, last = own.start - rows.start, own.stop - rows.start
            if first == last or begins[first] == LITERAL_EMPTY:
                yield example_id, json.dumps(self._records(own), indent=4).replace("\n", "\n    ")
            else:
                yield example_id, _layout(self.logit_names, last - first) % tuple(values[4 * first : 4 * last])

    def _values_json(self, rows: slice) -> list[str]:
        """Return the four values of each record in turn, as JSON."""
        spans, values = self.shortlist.ranked.spans, [""] * (4 * (rows.stop - rows.start))
        values[0::4] = repeated_numbers_json(spans.start_logit_N[rows])
        values[1::4] = repeated_numbers_json(spans.end_logit_N[rows])
        values[2::4] = scalars_json(self.shortlist.texts(rows))
        values[3::4] = scalars_json(self.shortlist.probability_N[rows].tolist())
        return values

    def _records(self, rows: slice) -> list[NBestRecord]:
        """Return the records of one example."""
        shortlist, spans = self.shortlist, self.shortlist.ranked.spans
        numbers = (spans.chars_N2[:, 0], spans.start_logit_N, spans.end_logit_N, shortlist.probability_N)
        columns = zip(*(column[rows].tolist() for column in numbers), shortlist.texts(rows), strict=True)
        return [self._record(*values) for values in columns] or [*self.of_no_span]

    def _record(self, begin: int, start_logit: float, end_logit: float, probability: float, text: str) -> NBestRecord:
        start_name, end_name = self.logit_names
        if begin == LITERAL_EMPTY:  # transformers has the text of this record first
            return {"text": text, start_name: start_logit, end_name: end_logit, "probability": probability}
        return {start_name: start_logit, end_name: end_logit, "text": text, "probability": probability}


@cache
def _layout(logit_names: tuple[str, str], count: int) -> str:
    """Return what the list of so many records looks like around its values."""
    values = (f'"{name}": %s' for name in (*logit_names, "text", "probability"))
    record = "{\n            " + ",\n            ".join(values) + "\n        }"
    return "[\n        " + ",\n        ".join([record] * count) + "\n    ]"


class Answers:
    """The answers of all examples; made by `SpanPostProcessor.compute`.

    Args:
        shortlist: The best spans of the examples.
        choice: Which of them is the answer.

    Attributes:
        shortlist: The best spans of the examples.
        predictions: The answer to every example, ``{id: text}``: ``""`` for none, ``"yes"`` or ``"no"`` where that is
            the kind of answer.
        spans: Its characters in the context, ``{id: (start, end)}``, ``None`` where no span is the answer.
        context_indices: Which context the best span stands in, ``{id: index}``.
        passages: The long answer: the passage that holds the best span, ``{id: index}``, -1 for none.
        answer_types: The kind of answer, ``{id: TargetType}``.
        null_odds: By how much the score of "no answer" exceeds the best span's, ``{id: odds}``; ``None`` if "no
            answer" could not be predicted.
        null_threshold: "No answer" was predicted where the odds exceed this.
    """

    logit_names = ("start_logit", "end_logit")
    """What the n-best lists call the scores of a span's first and last token."""

    nbest_of_no_span: Sequence[NBestRecord] = ()
    """The n-best list of an example without any span."""

    def __init__(self, shortlist: Shortlist, choice: Choice) -> None:
        self.shortlist, self._choice = shortlist, choice
        self.null_threshold = choice.threshold
        chars_E2, context_E = self._places(choice.chosen_E)
        texts = span_texts(shortlist.contexts_E, np.arange(len(chars_E2)), context_E, chars_E2)
        answers = zip(shortlist.example_ids, choice.type_E.tolist(), texts, strict=True)
        self.predictions = {example_id: _TYPE_TEXTS.get(kind, text) for example_id, kind, text in answers}
        odds_E = choice.null_odds_E
        self.null_odds = None if odds_E is None else dict(zip(shortlist.example_ids, odds_E.tolist(), strict=True))

    @cached_property
    def spans(self) -> dict[str, tuple[int, int] | None]:
        """See the class."""
        chars_E2 = self._places(self._choice.chosen_E)[0]
        spans = zip(self.shortlist.example_ids, *chars_E2.T.tolist(), strict=True)
        return {example_id: (start, end) if end > start else None for example_id, start, end in spans}

    @cached_property
    def nbest(self) -> dict[str, list[NBestRecord]]:
        """The best spans of every example, best first: ``start_logit``, ``end_logit``, ``text``, ``probability``."""
        return dict(self._nbest_lists)

    @cached_property
    def candidates(self) -> dict[str, list[SpanAnswer]]:
        """The best spans of every example, best first, with their places; "no answer" has an empty text."""
        return dict(self.shortlist)

    @cached_property
    def context_indices(self) -> dict[str, int]:
        """See the class."""
        return dict(zip(self.shortlist.example_ids, self._places(self._choice.span_E)[1].tolist(), strict=True))

    @cached_property
    def passages(self) -> dict[str, int]:
        """See the class."""
        keeps_E = (self._choice.chosen_E >= 0) | (self._choice.type_E != TargetType.SPAN_ANSWER)
        span_E = np.where(keeps_E, self._choice.span_E, -1)
        passages = np.append(self.shortlist.passage_N, -1)[span_E].tolist()
        return dict(zip(self.shortlist.example_ids, passages, strict=True))

    @cached_property
    def answer_types(self) -> dict[str, TargetType]:
        """See the class."""
        is_none_E = (self._choice.chosen_E < 0) & (self._choice.type_E == TargetType.SPAN_ANSWER)
        types = np.where(is_none_E, TargetType.NO_ANSWER, self._choice.type_E).tolist()
        return dict(zip(self.shortlist.example_ids, map(TargetType, types), strict=True))

    @cached_property
    def rows_E(self) -> Int64s:
        """Where the answer to each example stands in the shortlist, "no answer" included, ``int64 [E]``, -1 if not."""
        ranked, choice = self.shortlist.ranked, self._choice
        nulls = np.flatnonzero(is_null(ranked.spans))
        null_E = np.full(len(choice.span_E), -1, np.int64)
        null_E[ranked.example_N[nulls]] = nulls
        is_none_E = (choice.chosen_E < 0) & (choice.type_E == TargetType.SPAN_ANSWER)
        return np.where(is_none_E, null_E, choice.span_E)

    @cached_property
    def best_texts(self) -> dict[str, str]:
        """The answer to every example if "no answer" were none."""
        return self.at_null_threshold(np.inf).predictions

    def at_null_threshold(self, threshold: float) -> "Answers":
        """Return the answers for another threshold: "no answer" where its odds exceed it."""
        return type(self)(self.shortlist, replace(self._choice, threshold=threshold))

    def write(self, folder: str | Path, prefix: str | None = "eval") -> None:
        """Write the files of the QA example of transformers: predictions, n-best lists and null odds.

        Args:
            folder: Where to; made if it is missing.
            prefix: File names begin with this and ``_``; ``None`` leaves both out.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        start = f"{prefix}_" if prefix else ""
        write_mapping(folder / f"{start}predictions.json", self.predictions)
        write_nbest(folder / f"{start}nbest_predictions.json", self._nbest_lists.json_lists())
        if self.null_odds is not None:
            write_mapping(folder / f"{start}null_odds.json", self.null_odds)

    @property
    def _nbest_lists(self) -> NBestLists:
        return NBestLists(self.shortlist, self.logit_names, self.nbest_of_no_span)

    def _places(self, span_E: Int64s) -> tuple[Int32s, Int64s]:
        """Return characters and context of spans, ``[E, 2]`` and ``[E]``; zeros for span -1."""
        chars_N2 = np.append(self.shortlist.ranked.spans.chars_N2, [[0, 0]], axis=0)  # -1 takes the appended row
        return chars_N2[span_E], np.append(self.shortlist.context_N, 0)[span_E]


Scalar = str | float


def mapping_json(values: Mapping[str, Scalar]) -> str:
    """Return a mapping of plain values as JSON with an indent of 4."""
    if not values:
        return "{}"
    entries = json.dumps(values, separators=(",\n    ", ": "))[1:-1]
    return f"{{\n    {entries}\n}}"


def scalars_json(values: Sequence[Scalar]) -> list[str]:
    """Return every value of a sequence as JSON."""
    if not values:
        return []
    return json.dumps(values, separators=("\n", ": "))[1:-1].split("\n")  # JSON escapes line breaks within texts


def repeated_numbers_json(numbers_N: Floats) -> list[str]:
    """Return every number of an array as JSON, made into a text once for all its places, ``N`` of them."""
    # As bits, because 0.0 and -0.0 are equal but written differently.
    bits, place_N = np.unique(numbers_N.astype(np.float64).view(np.int64), return_inverse=True)
    distinct = np.array(scalars_json(bits.view(np.float64).tolist()), object)
    texts: list[str] = distinct[place_N].tolist()
    return texts


_BUFFER_BYTES = 1 << 20  # lists have thousands of characters, and the usual buffer of 8 KiB holds one or two


def write_mapping(path: Path, values: Mapping[str, Scalar]) -> None:
    """Write a mapping of plain values."""
    path.write_text(mapping_json(values) + "\n", encoding="ascii")


def write_nbest(path: Path, lists: Iterable[tuple[str, str]]) -> None:
    """Write n-best lists as ``{id: [record, ...]}`` and hold one at a time.

    Args:
        path: The file.
        lists: Identifier and list of every example as JSON, at least one example; see `NBestLists.json_lists`.
    """
    separator = "{\n"
    with path.open("w", encoding="ascii", buffering=_BUFFER_BYTES) as file:
        for example_id, text in lists:
            file.write(f"{separator}    {example_id}: {text}")
            separator = ",\n"
        file.write("\n}\n")
