"""What the explorer of questions knows, as JSON."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from portico.mrc.report.figures.changes import Change
from portico.mrc.report.figures.marks import marked_stretches
from portico.mrc.report.figures.outcomes import Outcome, outcome
from portico.mrc.report.figures.slices import Slicing
from portico.mrc.report.results import QuestionResult

Kind = Outcome | Change
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ExplorerData:
    """Questions to read, each answered by one run or by two.

    Args:
        runs: Names of the runs.
        answered: For each run the results, all of the same questions in the same order.
        kinds: The class of each question.
        ranking: All classes, those that must not be left out first.
        slicings: Ways to group the questions.
        max_bytes: Room for the questions; those that find none are left out.
    """

    runs: Sequence[str]
    answered: Sequence[Sequence[QuestionResult]]
    kinds: Sequence[Kind]
    ranking: Sequence[Kind]
    slicings: Sequence[Slicing]
    max_bytes: int

    @cached_property
    def groups(self) -> list[dict[str, list[int]]]:
        """The groups of each slicing: the places of their questions by name."""
        return [slicing.members(self.answered[-1]) for slicing in self.slicings]

    def fitted(self) -> tuple[str, Mapping[Kind, int]]:
        """Return the JSON of as many questions as there is room for, and how many of each class were left out.

        Questions of one class are kept in their order; a passage counts once, with its first question.
        """
        rank = {kind: place for place, kind in enumerate(self.ranking)}
        numbers = self._group_numbers()
        contexts: dict[str, int] = {}
        kept: dict[int, str] = {}
        left_out: Counter[Kind] = Counter()
        room = self.max_bytes
        for place in sorted(range(len(self.kinds)), key=lambda place: rank[self.kinds[place]]):
            context = self.answered[0][place].context
            record = self._question(place, contexts.get(context, len(contexts)))
            question = _json({**record, "groups": [of_slicing[place] for of_slicing in numbers]})
            size = _size(question) + (0 if context in contexts else _size(_json(context)))
            if size > room:
                left_out[self.kinds[place]] += 1
                continue
            room -= size
            contexts.setdefault(context, len(contexts))
            kept[place] = question
        questions = ",".join(kept[place] for place in sorted(kept))
        head = _json(self._head())[1:-1]
        return f'{{{head},"contexts":{_json(list(contexts))},"questions":[{questions}]}}', left_out

    def _group_numbers(self) -> list[list[int]]:
        """Return for each slicing the number of every question's group."""
        numbers = [[0] * len(self.kinds) for _ in self.groups]
        for of_slicing, members in zip(numbers, self.groups, strict=True):
            for number, places in enumerate(members.values()):
                for place in places:
                    of_slicing[place] = number
        return numbers

    def _head(self) -> Record:
        return {
            "runs": list(self.runs),
            "kinds": [{"name": kind.css_class, "label": kind.label} for kind in self.ranking],
            "outcomes": [{"name": kind.css_class, "label": kind.label} for kind in Outcome],
            "groups": [list(members) for members in self.groups],
        }

    def _question(self, place: int, context: int) -> Record:
        results = [run[place] for run in self.answered]
        first = results[0]
        predicted = [[result.predicted_span] if result.predicted_span else [] for result in results]
        return {
            "id": first.id,
            "title": first.title,
            "asked": first.question,
            "context": context,
            "golds": list(dict.fromkeys(text for text, _ in first.golds)),
            "marks": marked_stretches(first.context, [first.gold_spans, *predicted]),
            "kind": self.ranking.index(self.kinds[place]),
            "answers": [_answer(result) for result in results],
        }


def _answer(result: QuestionResult) -> Record:
    return {
        "text": result.predicted_text,
        "placed": result.predicted_span is not None,
        "outcome": list(Outcome).index(outcome(result)),
        "f1": _rounded(result.f1),
        "sure": _rounded(result.probability),
        "odds": _rounded(result.null_odds),
        "candidates": [
            [candidate.text, _rounded(candidate.probability), _rounded(candidate.score)] for candidate in result.nbest
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _json(value: Any) -> str:
    # Inside a script element only "<" could be taken for markup.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _size(text: str) -> int:
    return len(text.encode("utf-8", errors="replace"))
