"""Counts and scores of groups of questions as HTML."""

from collections.abc import Mapping, Sequence

from portico.mrc.report.breakdown import Group
from portico.mrc.report.markup import escaped
from portico.mrc.report.results import Outcome

_MEANING = {
    Outcome.EXACT: "equal to an accepted answer",
    Outcome.DECLINED: "no answer, and none was given",
    Outcome.BOUNDARY: "the right place, but too long or too short",
    Outcome.WRONG_SPAN: "text from another place",
    Outcome.MISSED: "there is an answer, but none was given",
    Outcome.ANSWERED_UNANSWERABLE: "there is no answer, but one was given",
}


def outcome_bar(counts: Mapping[Outcome, int]) -> str:
    """Return one bar that shows the share of each outcome, with a legend."""
    total = sum(counts.values())
    stretches = "".join(
        f'<i class="{kind.css_class}" style="flex-grow:{count}"></i>' for kind, count in counts.items()
    )
    legend = "".join(
        f'<li class="{kind.css_class}"><b>{count:,}</b> {kind.value} <span class="share">{count / total:.0%}</span>'
        f"<small>{_MEANING[kind]}</small></li>"
        for kind, count in counts.items()
    )
    return f'<div class="outcomes" aria-hidden="true">{stretches}</div><ul class="outcome-legend">{legend}</ul>'


def group_table(title: str, first_column: str, groups: Sequence[Group]) -> str:
    """Return a table with one row a group: its size, F1 as a bar, and exact match."""
    rows = "".join(_row(group) for group in groups)
    return (
        f'<section class="panel"><h3>{escaped(title)}</h3><table class="groups">'
        f'<thead><tr><th scope="col">{escaped(first_column)}</th><th scope="col" class="number">questions</th>'
        '<th scope="col">F1</th><th scope="col" class="number">exact</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></section>"
    )


def _row(group: Group) -> str:
    return (
        f'<tr><th scope="row"><bdi>{escaped(group.name)}</bdi></th><td class="number">{group.count:,}</td>'
        f'<td><span class="bar"><i style="width:{group.f1:.1f}%"></i></span><b>{group.f1:.1f}</b></td>'
        f'<td class="number">{group.exact:.1f}</td></tr>'
    )
