"""What the report is made of: a run, and the result of every question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Span = tuple[int, int]

# Baselines of a run: no answer to any question, and the run's best span for every question.
DECLINING = "answering nothing"
ANSWERING = "always answering"


class Candidate(NamedTuple):
    """One entry of a question's n-best list; the text is empty for "no answer".

    The probability is its share among the candidates of the question, in 0..1; the score is the model's, as a sum of
    logits, or None if the run did not save it.
    """

    text: str
    probability: float
    score: float | None = None


class Scores(NamedTuple):
    """How well one text answers one question; see ``QuestionResult``."""

    exact: float
    f1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionResult:
    """One evaluated question.

    Args:
        id: The question's id.
        title: Title of the article; may be empty.
        question: The question.
        context: The whole passage; all offsets count its characters.
        golds: Accepted answers as ``(text, start)``; empty if the question has no answer. A negative start means that
            the position of the answer is unknown.
        predicted_text: The model's answer; empty if it declined to answer.
        predicted_span: The answer's character range in ``context``, end exclusive, or None.
        probability: The model's confidence in its answer, in 0..1, or None if the run did not save it.
        null_odds: Score of "no answer" minus the score of the best span, or None if the model cannot decline.
        exact: 1.0 if the answer equals an accepted one after normalisation, else 0.0.
        f1: Word overlap with the best accepted answer, in 0..1.
        question_type: A label of the data to group by, or an empty string.
        language: Language of the question as the data names it, or an empty string.
        nbest: The best candidates, best first.
        if_answered: Scores of the best candidate that is not empty, or of an empty text if there is none: what the
            model would have scored had it always answered. None if the run did not save candidates.
    """

    id: str
    title: str
    question: str
    context: str
    golds: tuple[tuple[str, int], ...]
    predicted_text: str
    predicted_span: Span | None
    probability: float | None
    null_odds: float | None
    exact: float
    f1: float
    question_type: str = ""
    language: str = ""
    nbest: tuple[Candidate, ...] = ()
    if_answered: Scores | None = None

    @property
    def gold_spans(self) -> list[Span]:
        """The character ranges in ``context`` of the accepted answers whose position is known, ends exclusive."""
        return [(start, start + len(text)) for text, start in self.golds if start >= 0]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as the report shows it.

    Args:
        title: Heading of the page.
        name: Identifies the run in a comparison: its folder.
        results: Every evaluated question; may be empty.
        metrics: Scores of the whole set, 0..100, under SQuAD's names with any prefix; also the loss, and run times in
            seconds. Missing scores are computed from ``results``.
        headline: The score of ``metrics``, without a prefix, that is shown first if it is neither F1 nor exact match.
        baselines: Metrics of answering trivially, such as ``DECLINING``, by name; None computes them from ``results``.
        log_history: The entries of a ``TrainerState``; those with a ``step`` are plotted.
        settings: The settings of the run; each nested mapping becomes a table.
        sections: More HTML by heading, shown after the learning curves. Markup that could execute or load anything is
            removed.
        missing: Sentences saying what the page cannot show, and why.
    """

    title: str
    name: str = ""
    results: Sequence[QuestionResult]
    metrics: Mapping[str, float] = field(default_factory=dict)
    headline: str = ""
    baselines: Mapping[str, Mapping[str, float]] | None = None
    log_history: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
