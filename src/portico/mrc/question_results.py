"""What became of each question, for the report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portico.mrc.columns import contexts_of
from portico.mrc.joined_contexts import context_starts, with_one_context
from portico.mrc.metrics.scores import exact_match, token_f1
from portico.mrc.postprocess import Answers
from portico.mrc.report.results import Candidate, QuestionResult, Scores, Span

_NUM_CANDIDATES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a run kept of one question.

    Args:
        text: The answer; empty for none.
        span: Its characters in the passage, end exclusive, or None if it has none or its place is not known.
        nbest: The candidates as an n-best file has them, or None if they were not kept.
        null_odds: Score of "no answer" minus that of the best span, or None.
    """

    text: str
    span: Span | None
    nbest: Sequence[Mapping[str, Any]] | None
    null_odds: float | None


def question_results(examples: Iterable[Mapping[str, Any]], answers: Answers) -> list[QuestionResult]:
    """Join examples and answers, one result a question, in the order of the examples."""
    null_odds = answers.null_odds or {}
    return [
        question_result(
            with_one_context(example),
            Answered(
                text=answers.predictions[key],
                span=_span(example, answers),
                nbest=answers.nbest[key],
                null_odds=null_odds.get(key),
            ),
        )
        for example in examples
        for key in (example["id"],)
    ]


def _span(example: Mapping[str, Any], answers: Answers) -> Span | None:
    """Return the characters of the answer in the joined contexts of its question."""
    key = example["id"]
    span = answers.spans[key]
    if span is None:
        return None
    start = context_starts(contexts_of(example))[answers.context_indices[key]]
    return start + span[0], start + span[1]


def question_result(example: Mapping[str, Any], answered: Answered) -> QuestionResult:
    """Join an example, in SQuAD's flat form, and what a run answered."""
    golds = example["answers"]
    candidates = None if answered.nbest is None else [_candidate(record) for record in answered.nbest]
    start, end = answered.span or (None, None)
    return QuestionResult(
        id=example["id"],
        title=example.get("title") or "",
        question=example["question"],
        context=example["context"],
        golds=tuple(zip(golds["text"], golds["answer_start"], strict=True)),
        predicted_text=answered.text,
        predicted_start=start,
        predicted_end=end,
        probability=None if candidates is None else _probability(answered.text, candidates),
        null_odds=answered.null_odds,
        exact=exact_match(answered.text, golds["text"]),
        f1=token_f1(answered.text, golds["text"]),
        question_type=example.get("question_type") or "",
        language=example.get("language") or "",
        nbest=tuple((candidates or ())[:_NUM_CANDIDATES]),
        if_answered=None if candidates is None else _if_answered(candidates, golds["text"]),
    )


def _candidate(record: Mapping[str, Any]) -> Candidate:
    logits = [float(record[name]) for name in ("start_logit", "end_logit") if record.get(name) is not None]
    score = record.get("score", sum(logits) if logits else None)
    return Candidate(str(record["text"]), float(record["probability"]), None if score is None else float(score))


def _probability(text: str, candidates: Sequence[Candidate]) -> float:
    return next((candidate.probability for candidate in candidates if candidate.text == text), 0.0)


def _if_answered(candidates: Sequence[Candidate], golds: Sequence[str]) -> Scores:
    text = next((candidate.text for candidate in candidates if candidate.text), "")
    return Scores(exact_match(text, golds), token_f1(text, golds))
