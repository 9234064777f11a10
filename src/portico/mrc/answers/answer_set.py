"""The answers of an evaluation set.

Shape suffixes: E examples, N ranked spans.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from portico.mrc.answers.answer_files import NBestRecord, write_json, write_nbest
from portico.mrc.answers.choice import LITERAL_EMPTY
from portico.mrc.answers.span_table import RankedSpans
from portico.mrc.arrays import Int64s


class Answers:
    """The answers of all examples; made by `SpanPostProcessor.compute`.

    Args:
        example_ids: Identifiers of the examples.
        contexts: Their contexts.
        ranked: Their best spans.
        probability_N: Probability of each span among those of its example, ``float64 [N]``.
        chosen_E: The span that is the answer, ``int64 [E]``, -1 for none.
        null_odds_E: By how much the score of "no answer" exceeds the best span's, ``float64 [E]``; ``None`` if "no
            answer" could not be predicted.

    Attributes:
        predictions: The answer to every example, ``{id: text}``, ``""`` for none.
        spans: Its characters in the context, ``{id: (start, end)}``, ``None`` for none.
        null_odds: ``{id: null_odds_E}``, or ``None``.
    """

    def __init__(
        self,
        example_ids: list[str],
        contexts: list[str],
        ranked: RankedSpans,
        probability_N: npt.NDArray[np.float64],
        chosen_E: Int64s,
        null_odds_E: npt.NDArray[np.float64] | None,
    ) -> None:
        self._example_ids, self._contexts = example_ids, contexts
        self._ranked, self._probability_N = ranked, probability_N
        chars = np.append(ranked.spans.chars_N2, [[0, 0]], axis=0)[chosen_E].tolist()  # -1 takes the appended row
        self.predictions: dict[str, str] = {}
        self.spans: dict[str, tuple[int, int] | None] = {}
        for example_id, context, (start, end) in zip(example_ids, contexts, chars, strict=True):
            self.predictions[example_id] = _text(context, start, end)
            self.spans[example_id] = (start, end) if end > start else None
        self.null_odds: dict[str, float] | None = None
        if null_odds_E is not None:
            self.null_odds = dict(zip(example_ids, null_odds_E.tolist(), strict=True))

    @cached_property
    def nbest(self) -> dict[str, list[NBestRecord]]:
        """The best spans of every example, best first: ``start_logit``, ``end_logit``, ``text``, ``probability``."""
        return dict(self._nbest_records())

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

    def _nbest_records(self) -> Iterator[tuple[str, list[NBestRecord]]]:
        """Build the n-best list of one example after the other."""
        spans = self._ranked.spans
        rows = self._ranked.row_starts.tolist()
        for example_id, context, first, end in zip(self._example_ids, self._contexts, rows, rows[1:], strict=False):
            own = slice(first, end)
            columns = (spans.chars_N2, spans.start_logit_N, spans.end_logit_N, self._probability_N)
            yield (
                example_id,
                [_record(context, *row) for row in zip(*(column[own].tolist() for column in columns), strict=True)],
            )


def _text(context: str, start: int, end: int) -> str:
    return "empty" if start == LITERAL_EMPTY else context[start:end]


def _record(context: str, chars: list[int], start_logit: float, end_logit: float, probability: float) -> NBestRecord:
    text = _text(context, *chars)
    if chars[0] == LITERAL_EMPTY:  # transformers has the text of this record first
        return {"text": text, "start_logit": start_logit, "end_logit": end_logit, "probability": probability}
    return {"start_logit": start_logit, "end_logit": end_logit, "text": text, "probability": probability}
