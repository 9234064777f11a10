"""The answers of an evaluation set.

Shape suffixes: E examples, N ranked spans.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from portico.mrc.answers.answer_files import write_mapping, write_nbest
from portico.mrc.answers.choice import Choice
from portico.mrc.answers.nbest_lists import NBestLists, NBestRecord
from portico.mrc.answers.shortlist import Shortlist, SpanAnswer
from portico.mrc.answers.span_table import is_null
from portico.mrc.answers.span_texts import span_texts
from portico.mrc.arrays import Int32s, Int64s
from portico.mrc.features.labels import TargetType

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
