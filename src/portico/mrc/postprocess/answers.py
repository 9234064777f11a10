"""The answers of an evaluation set: which span is the answer to each question, n-best lists, and their files.

Shape suffixes: E examples, N ranked spans.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from portico.mrc.arrays import Bools, Floats, Int32s, Int64s
from portico.mrc.features.labels import TargetType
from portico.mrc.postprocess.ranking import RankedSpans, Spans
from portico.mrc.postprocess.token_offsets import LITERAL_EMPTY, ExampleColumns
from portico.trust.disk import open_new, replaced, write_text

_T = TypeVar("_T")

NBestRecord: TypeAlias = Mapping[str, str | float]
"""One entry of an n-best list: the logits of its first and last token, its text and its probability."""

_TYPE_TEXTS = {TargetType.YES: "yes", TargetType.NO: "no"}
_EXAMPLES_AT_ONCE = 128  # bounds the memory for the text of n-best lists


@dataclass(frozen=True)
class SpanAnswer:
    """A possible answer, ``""`` for "no answer", at characters ``[start, end)`` of one of the question's contexts.

    ``passage_index`` is the passage of the document that contains the span, -1 for none; candidates are ranked by
    ``score``, and ``probability`` is the probability that this candidate is the answer.
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
    """The best spans of every example, best first, with what ``SpanAnswer`` says of each: ``[N]`` values."""

    examples: ExampleColumns
    ranked: RankedSpans
    context_N: Int64s
    passage_N: Int64s
    probability_N: npt.NDArray[np.float64]

    def rows(self) -> Iterator[tuple[str, slice]]:
        """Yield the identifier and the rows of every example."""
        starts = self.ranked.row_starts.tolist()
        for example_id, first, end in zip(self.examples.ids, starts, starts[1:], strict=False):
            yield example_id, slice(first, end)

    def texts(self, rows: slice) -> list[str]:
        example_N, chars_N2 = self.ranked.example_N[rows], self.ranked.spans.chars_N2[rows]
        return self.examples.texts(example_N, self.context_N[rows], chars_N2)


def add_literal_empty(ranked: RankedSpans) -> tuple[RankedSpans, Bools]:
    """Insert a first span with score 0 and the text "empty" into every example without any text.

    utils_qa.py of transformers does so where no span was found, or a single one without text. Returns also which
    examples got a span, ``bool [E]``.
    """
    num_texts_E = np.bincount(ranked.example_N, _has_text(ranked.spans), minlength=len(ranked.counts_E))
    needs_E = (ranked.counts_E <= 1) & (num_texts_E == 0)
    if not needs_E.any():
        return ranked, needs_E
    before = ranked.row_starts[:-1][needs_E]
    chars_N2, *others = ranked.spans.columns()
    inserted = (np.insert(other, before, 0, axis=0) for other in others)
    spans = Spans(np.insert(chars_N2, before, LITERAL_EMPTY, axis=0), *inserted)
    return RankedSpans(spans, ranked.row_starts + np.concatenate([[0], np.cumsum(needs_E)])), needs_E


def _has_text(spans: Spans) -> Bools:
    start_N, end_N = spans.chars_N2.T
    return (end_N > start_N) | (start_N == LITERAL_EMPTY)


@dataclass(frozen=True, eq=False)
class Choice:
    """Which span answers each question.

    Attributes:
        span_E: The span with the best text, ``int64 [E]``, -1 where there is none.
        null_odds_E: Score of "no answer" minus the score of this span, ``float64 [E]``; the score of "no answer"
            itself if there is no span; ``None`` if "no answer" cannot be predicted.
        threshold: "No answer" is predicted where the odds exceed it.
        type_E: The answer type (:class:`~portico.mrc.features.labels.TargetType`), ``int64 [E]``.
    """

    span_E: Int64s
    null_odds_E: npt.NDArray[np.float64] | None
    threshold: float
    type_E: Int64s

    @property
    def chosen_E(self) -> Int64s:
        """The span that is the answer, ``int64 [E]``, -1 for none."""
        is_span_E = self.type_E == TargetType.SPAN_ANSWER
        if self.null_odds_E is not None:
            is_span_E &= ~(self.null_odds_E > self.threshold)
        return np.where(is_span_E, self.span_E, -1)

    @property
    def is_null_E(self) -> Bools:
        """Where "no answer" is the answer, ``bool [E]``."""
        return (self.chosen_E < 0) & (self.type_E == TargetType.SPAN_ANSWER)


def choose(ranked: RankedSpans, nulls: Spans | None, threshold: float, type_E: Int64s) -> Choice:
    """Choose between spans and "no answer", whose ``nulls`` are ``None`` if it cannot be predicted; see ``Choice``."""
    if nulls is None:
        return Choice(np.where(ranked.counts_E > 0, ranked.row_starts[:-1], -1), None, threshold, type_E)
    has_text_N = _has_text(ranked.spans)
    best_E = ranked.row_starts[:-1].copy()
    end_E = ranked.row_starts[1:]
    # Only "no answer" comes before the first text, as a rule.
    while len(without := np.flatnonzero(best_E < end_E)[~has_text_N[best_E[best_E < end_E]]]):
        best_E[without] += 1
    found_E = best_E < end_E
    odds_E = nulls.score_N.copy()
    best = best_E[found_E]
    # One logit after the other, as in utils_qa.py: their rounded sum may differ in the last bit.
    odds_E[found_E] -= ranked.spans.start_logit_N[best]
    odds_E[found_E] -= ranked.spans.end_logit_N[best]
    return Choice(np.where(found_E, best_E, -1), odds_E.astype(np.float64), threshold, type_E)


class Answers:
    """The answers of all examples; returned by ``SpanPostProcessor.compute``.

    Attributes:
        predictions: The answer to every example, ``{id: text}``: ``""`` for none, ``"yes"`` or ``"no"`` where that is
            the answer type.
        null_odds: Score of "no answer" minus the score of the best span, ``{id: odds}``; ``None`` if "no answer" could
            not be predicted.
        null_threshold: "No answer" was predicted where the odds exceed this.
    """

    logit_names = ("start_logit", "end_logit")
    """The keys of the scores of a span's first and last token in n-best lists."""

    nbest_of_no_span: Sequence[NBestRecord] = ()
    """The n-best list of an example without any span."""

    def __init__(self, shortlist: Shortlist, choice: Choice) -> None:
        self.shortlist = shortlist
        self._choice = choice
        self.null_threshold = choice.threshold
        chars_E2, context_E = self._places(choice.chosen_E)
        texts = shortlist.examples.texts(np.arange(len(chars_E2)), context_E, chars_E2)
        for kind, type_text in _TYPE_TEXTS.items():
            for e in np.flatnonzero(choice.type_E == kind).tolist():
                texts[e] = type_text
        self.predictions = self._key_by_id(texts)
        odds_E = choice.null_odds_E
        self.null_odds = None if odds_E is None else self._key_by_id(odds_E.tolist())

    @cached_property
    def spans(self) -> dict[str, tuple[int, int] | None]:
        """Characters of the answer in its context, ``{id: (start, end)}``; ``None`` where no span is the answer."""
        chars = self._places(self._choice.chosen_E)[0].tolist()
        return self._key_by_id((start, end) if end > start else None for start, end in chars)

    @cached_property
    def nbest(self) -> dict[str, list[NBestRecord]]:
        """The best spans of every example, best first: ``start_logit``, ``end_logit``, ``text``, ``probability``."""
        return {example_id: self._records(rows) for example_id, rows in self.shortlist.rows()}

    @cached_property
    def candidates(self) -> dict[str, list[SpanAnswer]]:
        """The best spans of every example, best first, with their places; "no answer" has an empty text."""
        shortlist = self.shortlist
        spans = shortlist.ranked.spans
        numbers = (*spans.chars_N2.T, shortlist.context_N, shortlist.passage_N, spans.score_N, shortlist.probability_N)
        found = {}
        for example_id, rows in shortlist.rows():
            columns = (column[rows].tolist() for column in numbers)
            found[example_id] = [SpanAnswer(*parts) for parts in zip(shortlist.texts(rows), *columns, strict=True)]
        return found

    @cached_property
    def context_indices(self) -> dict[str, int]:
        """Which context contains the best span, ``{id: index}``."""
        return self._key_by_id(self._places(self._choice.span_E)[1].tolist())

    @cached_property
    def passages(self) -> dict[str, int]:
        """The long answer: the passage that contains the best span, ``{id: index}``, -1 for none."""
        span_E = np.where(self._choice.is_null_E, -1, self._choice.span_E)
        return self._key_by_id(np.append(self.shortlist.passage_N, -1)[span_E].tolist())

    @cached_property
    def answer_types(self) -> dict[str, TargetType]:
        types = np.where(self._choice.is_null_E, TargetType.NO_ANSWER, self._choice.type_E).tolist()
        return self._key_by_id(map(TargetType, types))

    @cached_property
    def rows_E(self) -> Int64s:
        """Row of each answer in the shortlist, "no answer" included, ``int64 [E]``; -1 where it has none."""
        ranked = self.shortlist.ranked
        nulls = np.flatnonzero(ranked.spans.is_null_N)
        null_E = np.full(len(self._choice.span_E), -1, np.int64)
        null_E[ranked.example_N[nulls]] = nulls
        return np.where(self._choice.is_null_E, null_E, self._choice.span_E)

    @cached_property
    def best_texts(self) -> dict[str, str]:
        """The answer to every example if "no answer" could not be predicted."""
        return self.at_null_threshold(np.inf).predictions

    def at_null_threshold(self, threshold: float) -> "Answers":
        """Return the answers for another threshold: "no answer" where its odds exceed it."""
        return type(self)(self.shortlist, replace(self._choice, threshold=threshold))

    def write(self, folder: str | Path, prefix: str | None = "eval") -> None:
        """Write the files of the QA example of transformers into a folder: predictions, n-best lists and null odds.

        File names begin with the prefix and ``_``; ``None`` leaves both out.
        """
        folder = Path(folder)
        start = f"{prefix}_" if prefix else ""
        ids = self.shortlist.examples.ids
        _write_json(folder / f"{start}predictions.json", ids, list(self.predictions.values()))
        with (
            replaced(folder / f"{start}nbest_predictions.json") as staging,
            open_new(staging, encoding="ascii") as file,
        ):
            file.writelines(self._nbest_blocks())
        if self.null_odds is not None:
            _write_json(folder / f"{start}null_odds.json", ids, np.array(list(self.null_odds.values())))

    def _key_by_id(self, values: Iterable[_T]) -> dict[str, _T]:
        return dict(zip(self.shortlist.examples.ids, values, strict=True))

    def _places(self, span_E: Int64s) -> tuple[Int32s, Int64s]:
        """Return characters and context of spans, ``[E, 2]`` and ``[E]``; zeros for span -1."""
        is_span_E = span_E >= 0
        chars_E2, context_E = np.zeros((len(span_E), 2), np.int32), np.zeros(len(span_E), np.int64)
        chars_E2[is_span_E] = self.shortlist.ranked.spans.chars_N2[span_E[is_span_E]]
        context_E[is_span_E] = self.shortlist.context_N[span_E[is_span_E]]
        return chars_E2, context_E

    def _records(self, rows: slice) -> list[NBestRecord]:
        shortlist = self.shortlist
        spans = self.shortlist.ranked.spans
        names = (*self.logit_names, "text", "probability")
        logits = (column[rows].tolist() for column in (spans.start_logit_N, spans.end_logit_N))
        columns = zip(*logits, shortlist.texts(rows), shortlist.probability_N[rows].tolist(), strict=True)
        records: list[NBestRecord] = [dict(zip(names, values, strict=True)) for values in columns]
        if records and spans.chars_N2[rows.start, 0] == LITERAL_EMPTY:
            # transformers puts the text of this record first; dicts keep their order.
            records[0] = {"text": "empty", **records[0]}
        return records or [*self.nbest_of_no_span]

    def _nbest_blocks(self) -> Iterator[str]:
        """Yield the text of the file of n-best lists, of some examples at a time.

        It is what ``json.dumps(..., indent=4)`` returns, in a tenth of the time, from columns.
        """
        starts = self.shortlist.ranked.row_starts
        ids = self.shortlist.examples.ids
        separator = "{\n"
        for first in range(0, len(ids), _EXAMPLES_AT_ONCE):
            some = slice(first, first + _EXAMPLES_AT_ONCE)
            yield separator + self._nbest_text(_encode(ids[some]), starts[first : first + _EXAMPLES_AT_ONCE + 1])
            separator = ",\n"
        yield "\n}\n"

    def _nbest_text(self, keys: list[str], starts: Int64s) -> str:
        """Return the lists of some examples, whose keys are encoded and whose rows are between the ``starts``.

        The pieces of text of all records are placed in one list by slices, then joined.
        """
        shortlist = self.shortlist
        rows = slice(int(starts[0]), int(starts[-1]))
        spans = shortlist.ranked.spans
        num_rows = rows.stop - rows.start
        first_name, *names = (f'            "{name}": ' for name in (*self.logit_names, "text", "probability"))
        pieces = ["", "", f",\n{names[0]}", "", f",\n{names[1]}", "", f",\n{names[2]}", "", "\n        }"] * num_rows
        begin = f"        {{\n{first_name}"
        opening, closing = [f",\n{begin}"] * num_rows, ["\n        }"] * num_rows
        before = ""
        no_span = json.dumps([*self.nbest_of_no_span], indent=4).replace("\n", "\n    ")
        bounds = (starts - starts[0]).tolist()
        for key, start, end in zip(keys, bounds, bounds[1:], strict=False):
            before += f"    {key}: "
            if start < end:
                opening[start] = f"{before}[\n{begin}"
                closing[end - 1] = "\n        }\n    ]"
                before = ",\n"
            else:
                before += f"{no_span},\n"
        pieces[0::9], pieces[8::9] = opening, closing
        pieces[1::9], pieces[3::9] = (_encode_logits(c[rows]) for c in (spans.start_logit_N, spans.end_logit_N))
        pieces[5::9] = _encode(shortlist.texts(rows))
        pieces[7::9] = _encode(shortlist.probability_N[rows])
        for row in np.flatnonzero(spans.chars_N2[rows, 0] == LITERAL_EMPTY).tolist():
            # transformers puts the text of this record first; dicts keep their order.
            pieces[9 * row] = pieces[9 * row].removesuffix(first_name) + f'{names[1]}"empty",\n{first_name}'
            pieces[9 * row + 4 : 9 * row + 6] = "", ""
        return "".join(pieces) + before.removesuffix(",\n")


class BeamAnswers(Answers):
    """The answers of models with a beam-search head, as in the QA example of transformers for them.

    The best span is always predicted; ``null_odds`` are the lowest score of "no answer".
    """

    logit_names = ("start_log_prob", "end_log_prob")
    # Where no span is legal, utils_qa.py names the logits of its only record as it does without beams.
    nbest_of_no_span = ({"text": "", "start_logit": -1e-6, "end_logit": -1e-6, "probability": 1.0},)


def _write_json(path: Path, keys: Sequence[str], values: Sequence[str] | Floats) -> None:
    # As `json.dumps(..., indent=4)`, which encodes in Python.
    members = ",\n    ".join(map(": ".join, zip(_encode(keys), _encode(values), strict=True)))
    write_text(path, f"{{\n    {members}\n}}\n")


def _encode(values: Sequence[str] | Floats) -> list[str]:
    """Return the JSON of each of some strings or numbers."""
    if not isinstance(values, np.ndarray):
        return list(map(json.encoder.encode_basestring_ascii, values))
    if not np.isfinite(values).all():
        return json.dumps(values.tolist(), separators=("\n", ":"))[1:-1].split("\n")
    # Arrow finds the same digits in a third of the time. Post-processing does not need it, but datasets loads it.
    arrow, compute = (sys.modules.get(name) for name in ("pyarrow", "pyarrow.compute"))
    if arrow is None or compute is None:
        return list(map(float.__repr__, values.tolist()))
    doubles = np.ascontiguousarray(values, np.float64)
    column = arrow.Array.from_buffers(arrow.float64(), len(doubles), [None, arrow.py_buffer(doubles)])
    # It writes whole numbers without a point, and exponents from other sizes on and without a zero.
    texts: list[str] = compute.replace_substring_regex(column.cast(arrow.string()), r"e-(\d)$", r"e-0\1").to_pylist()
    size = np.abs(doubles)
    other = ((size >= 1e-6) & (size < 1e-4)) | (size >= 1e9) | (size == np.rint(size))
    for place in np.flatnonzero(other).tolist():
        texts[place] = float.__repr__(doubles.item(place))
    return texts


def _encode_logits(logit_N: Floats) -> list[str]:
    """Return the JSON of each of some logits, most of which come several times."""
    # By their bits, which distinguish 0.0 from -0.0.
    bits, places_N = np.unique(logit_N.view(f"i{logit_N.itemsize}"), return_inverse=True)
    return np.array(_encode(bits.view(logit_N.dtype)), object)[places_N].tolist()
