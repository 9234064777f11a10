"""The result of each question, for the report."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from portico.mrc.datasets.examples import answers_of, context_starts, contexts_of, join_contexts
from portico.mrc.metrics.scores import exact_and_f1
from portico.mrc.postprocess import Answers
from portico.mrc.report.results import Candidate, QuestionResult, Scores, Span

_NUM_CANDIDATES = 5


def question_results(examples: Iterable[Mapping[str, Any]], answers: Answers) -> list[QuestionResult]:
    """Join examples and answers, one result per question, in the order of the examples."""
    null_odds = answers.null_odds or {}
    results = []
    for example in examples:
        key = example["id"]
        span = answers.spans[key]
        if span is not None:
            # The report shows the contexts of a question joined to one.
            offset = context_starts(contexts_of(example))[answers.context_indices[key]]
            span = offset + span[0], offset + span[1]
        text = answers.predictions[key]
        nbest = answers.nbest[key]
        question = question_result(join_contexts(example), text, span=span, nbest=nbest, null_odds=null_odds.get(key))
        results.append(question)
    return results


def question_result(
    example: Mapping[str, Any],
    text: str,
    *,
    span: Span | None,
    nbest: Sequence[Mapping[str, Any]] | None,
    null_odds: float | None,
) -> QuestionResult:
    """Join an example in SQuAD's flat form and its stored answer.

    Args:
        example: The example.
        text: The answer.
        span: The characters ``[start, end)`` of the answer in the passage; ``None`` if unknown.
        nbest: The candidates in the form of an n-best file; ``None`` if they were not stored.
        null_odds: The score of "no answer" minus the score of the best span; ``None`` if it was not stored.
    """
    texts, starts = answers_of(example)
    candidates = None if nbest is None else [_candidate(record) for record in nbest]
    probability, if_answered = None, None
    if candidates is not None:
        probability = next((candidate.probability for candidate in candidates if candidate.text == text), 0.0)
        best = next((candidate.text for candidate in candidates if candidate.text), "")
        if_answered = Scores(*exact_and_f1(best, texts))
    exact, f1 = exact_and_f1(text, texts)
    return QuestionResult(
        id=example["id"],
        title=example.get("title") or "",
        question=example["question"],
        context=example["context"],
        golds=tuple(zip(texts, starts, strict=True)),
        predicted_text=text,
        predicted_span=span,
        probability=probability,
        null_odds=null_odds,
        exact=exact,
        f1=f1,
        question_type=example.get("question_type") or "",
        language=example.get("language") or "",
        nbest=tuple((candidates or ())[:_NUM_CANDIDATES]),
        if_answered=if_answered,
    )


def _candidate(record: Mapping[str, Any]) -> Candidate:
    logits = [float(record[name]) for name in ("start_logit", "end_logit") if record.get(name) is not None]
    score = record.get("score", sum(logits) if logits else None)
    return Candidate(str(record["text"]), float(record["probability"]), None if score is None else float(score))
