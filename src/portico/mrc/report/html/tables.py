"""Counts and scores of groups of questions as HTML."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from portico.mrc.report.figures.changes import Change, Difference
from portico.mrc.report.figures.intervals import Interval
from portico.mrc.report.figures.outcomes import Outcome
from portico.mrc.report.figures.slices import Group
from portico.mrc.report.html.markup import escaped

GroupT = TypeVar("GroupT", Group, Difference)


def share_bar(counts: Mapping[Outcome, int] | Mapping[Change, int]) -> str:
    """Return one bar that shows the share of each class of questions, with a legend."""
    total = sum(counts.values())
    stretches = "".join(
        f'<i class="{kind.css_class}" style="flex-grow:{count}"></i>' for kind, count in counts.items()
    )
    legend = "".join(
        f'<li class="{kind.css_class}"><b>{count:,}</b> {kind.label} <span class="share">{count / total:.0%}</span>'
        f"<small>{kind.meaning}</small></li>"
        for kind, count in counts.items()
    )
    return f'<div class="shares" aria-hidden="true">{stretches}</div><ul class="share-legend">{legend}</ul>'


@dataclass(frozen=True)
class GroupTable(Generic[GroupT]):
    """A table with one row a group: its name and size, and what else is said of it.

    Args:
        css_class: Class of the table.
        headings: Further columns, as HTML.
        cells: Returns those of a group, as HTML.
    """

    css_class: str
    headings: str
    cells: Callable[[GroupT], str]

    def html(self, title: str, column: str, groups: Sequence[GroupT], links: Sequence[str]) -> str:
        """Return the table.

        Args:
            title: Heading of the table.
            column: Heading of the groups' names.
            groups: The rows.
            links: Where each group's name leads.
        """
        rows = "".join(
            f"<tr>{_row_start(group.name, group.count, link)}{self.cells(group)}</tr>"
            for group, link in zip(groups, links, strict=True)
        )
        return (
            f'<section class="panel"><h3>{escaped(title)}</h3><div class="wide"><table class="{self.css_class}">'
            f'<thead><tr><th scope="col">{escaped(column)}</th><th scope="col" class="number">questions</th>'
            f"{self.headings}</tr></thead><tbody>{rows}</tbody></table></div></section>"
        )


def _row_start(name: str, count: int, link: str) -> str:
    return (
        f'<th scope="row"><a href="{escaped(link)}"><bdi>{escaped(name)}</bdi></a></th>'
        f'<td class="number">{count:,}</td>'
    )


def _score_cells(group: Group) -> str:
    return (
        f"<td>{_bar(group.f1, group.f1_interval)}<b>{group.f1:.1f}</b> {_interval(group.f1_interval)}</td>"
        f'<td class="number">{group.exact:.1f} {_interval(group.exact_interval)}</td>'
    )


def _difference_cells(group: Difference) -> str:
    return (
        f'<td class="number">{group.first_f1:.1f}</td><td class="number">{group.second_f1:.1f}</td>'
        f'<td class="number"><b class="{direction(group.f1_interval)}">{group.second_f1 - group.first_f1:+.1f}</b> '
        f"{_interval(group.f1_interval, signed=True)}</td>"
        f'<td class="number">{group.num_fixed:,}</td><td class="number">{group.num_broken:,}</td>'
    )


SCORES = GroupTable("groups", '<th scope="col">F1</th><th scope="col" class="number">exact</th>', _score_cells)
"""F1 as a bar with its interval, and exact match."""

DIFFERENCES = GroupTable(
    "differences",
    "".join(
        f'<th scope="col" class="number">{name}</th>' for name in ("1st F1", "2nd F1", "change", "fixed", "broken")
    ),
    _difference_cells,
)
"""F1 in both runs, how it moved with its interval, and how many answers were fixed and broken."""


def direction(interval: Interval) -> str:
    """Return the CSS class of a difference: up or down if its interval leaves zero out, else unsure."""
    if interval.low > 0:
        return "up"
    return "down" if interval.high < 0 else "unsure"


def _bar(percent: float, interval: Interval) -> str:
    return (
        f'<span class="bar"><i style="width:{percent:.1f}%"></i>'
        f'<i class="range" style="left:{interval.low:.1f}%;width:{interval.high - interval.low:.1f}%"></i></span>'
    )


def _interval(interval: Interval, *, signed: bool = False) -> str:
    form = "+.1f" if signed else ".1f"
    return f'<span class="interval">{interval.low:{form}} to {interval.high:{form}}</span>'
