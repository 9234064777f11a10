"""The explorer of questions: its controls as HTML, and the data that its script shows, as JSON."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from portico.mrc.report.figures import Grouping, Kind, Outcome, count_kinds, outcome
from portico.mrc.report.results import QuestionResult, Span
from portico.report.page import render

MAX_MEGABYTES = 20.0
BYTES = 1_000_000

_ORDERS = {
    "worst": "lowest F1 first",
    "sure": "most confident first",
    "unsure": "least confident first",
    "long": "longest passage first",
    "given": "as in the data",
}
_ORDERS_OF_CHANGES = {"moved": "largest change first", **_ORDERS}

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """Questions to read, each answered by one run or by several: the same questions in the same order.

    ``kinds`` has the kind of each question and ``ranking`` all kinds. If the questions take more than ``max_bytes``,
    questions of the last kinds in the ranking are left out first.
    """

    runs: Sequence[str]
    answered: Sequence[Sequence[QuestionResult]]
    kinds: Sequence[Kind]
    ranking: Sequence[Kind]
    groupings: Sequence[Grouping]
    max_bytes: int

    @cached_property
    def groups(self) -> list[dict[str, list[int]]]:
        """The groups of each grouping: the indices of their questions by name."""
        return [grouping.members(self.answered[-1]) for grouping in self.groupings]

    def html(self) -> Markup:
        if not self.kinds:
            return Markup()
        data, left_out = self.fit()
        counts = count_kinds(self.kinds)
        return render(
            "explorer.html.j2",
            filters=[(number, kind, counts[kind]) for number, kind in enumerate(self.ranking) if kind in counts],
            groups=[
                (grouping, [(f"{number}.{name}", name) for name in members])
                for number, (grouping, members) in enumerate(zip(self.groupings, self.groups, strict=True))
            ],
            orders=_ORDERS_OF_CHANGES if len(self.runs) > 1 else _ORDERS,
            runs=self.runs,
            left_out=left_out,
            num_questions=len(self.kinds),
            max_megabytes=self.max_bytes / BYTES,
            data=Markup(data),
        )

    def fit(self) -> tuple[str, Mapping[Kind, int]]:
        """Return as many questions as fit, as JSON, and the number of questions of each kind that were left out.

        The questions of a kind keep their order; a passage counts once, with its first question.
        """
        # The number of every question's group, for each grouping.
        numbers = [
            {index: number for number, indices in enumerate(members.values()) for index in indices}
            for members in self.groups
        ]
        contexts: dict[str, int] = {}
        kept: dict[int, str] = {}
        left_out: Counter[Kind] = Counter()
        room = self.max_bytes
        rank = {kind: place for place, kind in enumerate(self.ranking)}
        # sorted() is stable: within a kind, the first questions of the data are kept.
        for index in sorted(range(len(self.kinds)), key=lambda index: rank[self.kinds[index]]):
            context = self.answered[0][index].context
            record = self._question(index, contexts.get(context, len(contexts)))
            question = _json({**record, "groups": [number_of[index] for number_of in numbers]})
            size = _size(question) + (0 if context in contexts else _size(_json(context)))
            if size > room:
                left_out[self.kinds[index]] += 1
                continue
            room -= size
            contexts.setdefault(context, len(contexts))
            kept[index] = question
        # The questions were encoded one by one to know their sizes; they are not encoded again.
        questions = ",".join(kept[index] for index in sorted(kept))
        head = {
            "runs": list(self.runs),
            "kinds": [{"name": kind.css_class, "label": kind.label} for kind in self.ranking],
            "outcomes": [{"name": kind.css_class, "label": kind.label} for kind in Outcome],
            "groups": [list(members) for members in self.groups],
            "contexts": list(contexts),
        }
        return f'{_json(head)[:-1]},"questions":[{questions}]}}', left_out

    def _question(self, index: int, context: int) -> Record:
        results = [run[index] for run in self.answered]
        first = results[0]
        predicted = [[result.predicted_span] if result.predicted_span else [] for result in results]
        return {
            "id": first.id,
            "title": first.title,
            "asked": first.question,
            "context": context,
            "golds": list(dict.fromkeys(text for text, _ in first.golds)),
            "marks": merge_marks(first.context, [first.gold_spans, *predicted]),
            "kind": self.ranking.index(self.kinds[index]),
            "answers": [_answer(result) for result in results],
        }


def group_link(grouping: int, name: str) -> str:
    """Return the address on the page of the questions of a group."""
    return f"#g={quote(f'{grouping}.{name}', safe='')}"


def kind_link(number: int) -> str:
    """Return the address on the page of the questions of a kind, by its place in the explorer's ranking."""
    return f"#k={number}"


def _answer(result: QuestionResult) -> Record:
    return {
        "text": result.predicted_text,
        "placed": result.predicted_span is not None,
        "outcome": outcome(result).rank,
        "f1": _round(result.f1),
        "sure": _round(result.probability),
        "odds": _round(result.null_odds),
        "candidates": [
            [candidate.text, _round(candidate.probability), _round(candidate.score)] for candidate in result.nbest
        ],
    }


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _json(value: object) -> str:
    # In a script element only "<" can end the data: "</script>" and "<!--".
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _size(text: str) -> int:
    return len(text.encode("utf-8", errors="replace"))


def merge_marks(context: str, layers: Sequence[Sequence[Span]]) -> list[tuple[int, int, int]]:
    """Return the marked parts of a passage, in order and without overlap, as ``(start, end, kinds)``.

    Each layer has the character ranges, ends exclusive, of one kind of mark. Ranges may overlap; parts outside the
    passage are ignored. Offsets are in UTF-16 units, as a browser counts them; bit ``i`` of ``kinds`` is layer ``i``.
    """
    spans = [
        (max(start, 0), min(end, len(context)), 1 << layer)
        for layer, ranges in enumerate(layers)
        for start, end in ranges
    ]
    edges = sorted({edge for start, end, _ in spans if start < end for edge in (start, end)})
    # Only characters beyond the basic plane take two units.
    lengths = (
        end - start + sum(char > "\uffff" for char in context[start:end]) for start, end in pairwise([0, *edges])
    )
    units = dict(zip(edges, accumulate(lengths), strict=True))
    stretches = []
    for start, end in pairwise(edges):
        # Each layer is one bit, so the sum of distinct ones joins them.
        kinds = sum({kind for span_start, span_end, kind in spans if span_start <= start < span_end})
        if kinds:
            stretches.append((units[start], units[end], kinds))
    return stretches
