"""What became of each question, for the report."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from portico.mrc.answers import Answers
from portico.mrc.metrics.scores import exact_match, token_f1
from portico.mrc.report import QuestionResult

_NUM_CANDIDATES = 5


def question_results(examples: Iterable[Mapping[str, Any]], answers: Answers) -> list[QuestionResult]:
    """Join examples and answers, one result a question, in the order of the examples."""
    return [_result(example, answers) for example in examples]


def _result(example: Mapping[str, Any], answers: Answers) -> QuestionResult:
    key, golds = example["id"], example["answers"]
    text = answers.predictions[key]
    start, end = answers.spans[key] or (None, None)
    candidates = [(str(record["text"]), float(record["probability"])) for record in answers.nbest[key]]
    return QuestionResult(
        id=key,
        title=example.get("title", ""),
        question=example["question"],
        context=example["context"],
        golds=tuple(zip(golds["text"], golds["answer_start"], strict=True)),
        predicted_text=text,
        predicted_start=start,
        predicted_end=end,
        probability=_probability(text, candidates),
        null_odds=None if answers.null_odds is None else answers.null_odds[key],
        exact=exact_match(text, golds["text"]),
        f1=token_f1(text, golds["text"]),
        question_type=example.get("question_type", ""),
        nbest=tuple(candidates[:_NUM_CANDIDATES]),
    )


def _probability(text: str, candidates: Sequence[tuple[str, float]]) -> float:
    return next((probability for candidate, probability in candidates if candidate == text), 0.0)
