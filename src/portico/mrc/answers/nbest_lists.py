"""The n-best lists of the QA examples of transformers, as records and as JSON.

Shape suffixes: N ranked spans.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from portico.mrc.answers.json_text import repeated_numbers_json, scalars_json
from portico.mrc.answers.shortlist import Shortlist
from portico.mrc.answers.span_texts import LITERAL_EMPTY

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
