"""Single questions as HTML cards."""

from collections.abc import Sequence

from portico.mrc.report.breakdown import outcome_counts
from portico.mrc.report.highlight import passage
from portico.mrc.report.markup import escaped
from portico.mrc.report.question_types import question_type
from portico.mrc.report.results import QuestionResult, outcome

_NO_ANSWER = '<em class="none">no answer</em>'


def question_list(title: str, note: str, results: Sequence[QuestionResult], *, num_open: int = 0) -> str:
    """Return a heading and a card for each question, the first `num_open` unfolded, or nothing if there is none."""
    if not results:
        return ""
    cards = "".join(card(result, is_open=index < num_open) for index, result in enumerate(results))
    return (
        f'<section class="questions"><h3>{escaped(title)} <span class="count">{len(results)}</span></h3>'
        f'<p class="note">{escaped(note)}</p>{cards}</section>'
    )


def toolbar(results: Sequence[QuestionResult]) -> str:
    """Return the controls that narrow the cards down; hidden until the script makes them work."""
    buttons = "".join(
        f'<button type="button" aria-pressed="false" class="{kind.css_class}" data-outcome="{kind.css_class}">'
        f"{kind.value} <span>{count}</span></button>"
        for kind, count in outcome_counts(results).items()
    )
    return (
        '<div class="toolbar" hidden><div class="filters" role="group" aria-label="Show only">'
        f"{buttons}</div>"
        '<input type="search" aria-label="Search these questions" placeholder="Search questions and passages">'
        '<button type="button" class="unfold" aria-pressed="false">Unfold all</button>'
        '<p class="matches" role="status"></p></div>'
    )


def card(result: QuestionResult, *, is_open: bool) -> str:
    """Return one question: what was asked, expected and answered; unfolded, the passage and the candidates."""
    kind = outcome(result)
    return (
        f'<details class="card" data-outcome="{kind.css_class}"{" open" if is_open else ""}><summary>'
        f'<span class="asked" dir="auto">{escaped(result.question)}</span>'
        f'<span class="verdict"><span class="badge {kind.css_class}">{kind.value}</span>'
        f'<span class="f1">F1 {100 * result.f1:.0f}</span></span>{_answers(result)}</summary>'
        f'<div class="body"><p class="passage" dir="auto">'
        f"{passage(result.context, result.gold_spans, result.predicted_span)}</p>"
        f"<div>{_candidates(result)}{_origin(result)}</div></div></details>"
    )


def _answers(result: QuestionResult) -> str:
    golds = list(dict.fromkeys(text for text, _ in result.golds))
    gold = " ".join(f'<bdi class="gold">{escaped(text)}</bdi>' for text in golds) or _NO_ANSWER
    predicted = escaped(result.predicted_text)
    predicted = f'<bdi class="predicted">{predicted}</bdi>' if predicted else _NO_ANSWER
    return (
        f'<span class="answers"><span class="name">expected</span><span>{gold}</span>'
        f'<span class="name">answered</span><span>{predicted} '
        f'<span class="sure">{result.probability:.0%} sure</span></span></span>'
    )


def _candidates(result: QuestionResult) -> str:
    if not result.nbest:
        return ""
    rows = "".join(
        f"<li><bdi>{escaped(text) or _NO_ANSWER}</bdi>"
        f'<span class="bar"><i style="width:{100 * probability:.1f}%"></i></span><b>{probability:.1%}</b></li>'
        for text, probability in result.nbest
    )
    return f'<h4>Candidates</h4><ol class="candidates">{rows}</ol>'


def _origin(result: QuestionResult) -> str:
    facts = {
        "article": result.title,
        "type": result.question_type or question_type(result.question),
        "id": result.id,
        "null odds": "" if result.null_odds is None else f"{result.null_odds:+.2f}",
    }
    shown = "".join(f"<span>{name} <bdi>{escaped(fact)}</bdi></span>" for name, fact in facts.items() if fact)
    return f'<p class="origin">{shown}</p>'
