"""The answers of an evaluation set.

Shape suffixes: E examples, N ranked spans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from portico.mrc.answers.answer_files import NBestRecord, write_json, write_nbest
from portico.mrc.answers.choice import LITERAL_EMPTY, Choice
from portico.mrc.answers.shortlist import Shortlist, SpanAnswer, span_text
from portico.mrc.answers.span_table import is_null
from portico.mrc.arrays import Int32s, Int64s
from portico.mrc.target_type import TargetType

_TYPE_TEXTS = {TargetType.YES: "yes", TargetType.NO: "no"}


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

    def __init__(self, shortlist: Shortlist, choice: Choice) -> None:
        self.shortlist, self._choice = shortlist, choice
        self.null_threshold = choice.threshold
        self.predictions: dict[str, str] = {}
        self.spans: dict[str, tuple[int, int] | None] = {}
        columns = (choice.type_E, *self._places(choice.chosen_E))
        rows = zip(shortlist.example_ids, shortlist.contexts_E, *(column.tolist() for column in columns), strict=True)
        for example_id, contexts, target_type, (start, end), context in rows:
            text = span_text(contexts[context], start, end)
            self.predictions[example_id] = _TYPE_TEXTS.get(target_type, text)
            self.spans[example_id] = (start, end) if end > start else None
        odds_E = choice.null_odds_E
        self.null_odds = None if odds_E is None else dict(zip(shortlist.example_ids, odds_E.tolist(), strict=True))

    @cached_property
    def nbest(self) -> dict[str, list[NBestRecord]]:
        """The best spans of every example, best first: ``start_logit``, ``end_logit``, ``text``, ``probability``."""
        return dict(self._nbest_records())

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
        write_json(folder / f"{start}predictions.json", self.predictions)
        write_nbest(folder / f"{start}nbest_predictions.json", self._nbest_records())
        if self.null_odds is not None:
            write_json(folder / f"{start}null_odds.json", self.null_odds)

    def _places(self, span_E: Int64s) -> tuple[Int32s, Int64s]:
        """Return characters and context of spans, ``[E, 2]`` and ``[E]``; zeros for span -1."""
        chars_N2 = np.append(self.shortlist.ranked.spans.chars_N2, [[0, 0]], axis=0)  # -1 takes the appended row
        return chars_N2[span_E], np.append(self.shortlist.context_N, 0)[span_E]

    def _nbest_records(self) -> Iterator[tuple[str, list[NBestRecord]]]:
        """Build the n-best list of one example after the other."""
        spans = self.shortlist.ranked.spans
        columns = (
            spans.chars_N2,
            self.shortlist.context_N,
            spans.start_logit_N,
            spans.end_logit_N,
            self.shortlist.probability_N,
        )
        for example_id, contexts, own in self.shortlist.examples():
            rows = zip(*(column[own].tolist() for column in columns), strict=True)
            yield example_id, [self._record(contexts, *row) for row in rows]

    def _record(
        self,
        contexts: Sequence[str],
        chars: list[int],
        context: int,
        start_logit: float,
        end_logit: float,
        probability: float,
    ) -> NBestRecord:
        text = span_text(contexts[context], *chars)
        start_name, end_name = self.logit_names
        if chars[0] == LITERAL_EMPTY:  # transformers has the text of this record first
            return {"text": text, start_name: start_logit, end_name: end_logit, "probability": probability}
        return {start_name: start_logit, end_name: end_logit, "text": text, "probability": probability}
