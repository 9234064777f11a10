"""Two runs side by side."""

from collections.abc import Sequence

from portico.mrc.report.figures.changes import (
    Change,
    Difference,
    Significance,
    change,
    change_counts,
    difference,
    significance,
)
from portico.mrc.report.figures.intervals import Interval
from portico.mrc.report.figures.slices import Slicing, slicings
from portico.mrc.report.html.assets import filled
from portico.mrc.report.html.explorer import BYTES, MAX_MEGABYTES, explorer, group_link
from portico.mrc.report.html.explorer_data import ExplorerData
from portico.mrc.report.html.markup import escaped
from portico.mrc.report.html.page import Section, page, panels, small_panels
from portico.mrc.report.html.settings import differing, settings_tables
from portico.mrc.report.html.tables import DIFFERENCES, direction, share_bar
from portico.mrc.report.html.tiles import num_questions
from portico.mrc.report.record import RunRecord
from portico.mrc.report.results import QuestionResult

# p-values below this are taken for a difference that is no chance, by convention.
_SIGNIFICANT = 0.05

Results = Sequence[QuestionResult]


def comparison_page(first: RunRecord, second: RunRecord, *, max_megabytes: float = MAX_MEGABYTES) -> str:
    """Return what changed from one run to another as one HTML page.

    Args:
        first: The run to start from.
        second: The run to judge; its `results` are of the same questions in the same order, at least one.
        max_megabytes: Room for the questions to read; the figures count all questions in any case.
    """
    whole = difference("", first.results, second.results)
    changes = share_bar(change_counts(first.results, second.results))
    settings = small_panels(settings_tables(differing(first.settings, second.settings)))
    groupings = slicings(second.results)
    return page(
        f"{first.name} and {second.name}",
        _lead(whole),
        filled("scoreboard.html", **_scoreboard(first, second, whole)),
        [
            Section("What was fixed and what broke", changes, "Changes"),
            Section("Whether it is more than chance", _chance(first.results, second.results, whole), "Significance"),
            Section("Where it moved", _tables(first.results, second.results, groupings), "Groups"),
            Section("Changed questions", _questions(first, second, groupings, max_megabytes), "Questions"),
            Section("Settings that differ", settings, "Settings"),
            Section("How to read the figures", filled("methods.html"), "Methods"),
        ],
    )


def _lead(whole: Difference) -> str:
    moved = whole.second_f1 - whole.first_f1
    verb = "rose" if moved > 0 else "fell" if moved < 0 else "stayed"
    by = f" by {abs(moved):.1f} to {whole.second_f1:.1f}" if moved else f" at {whole.second_f1:.1f}"
    return (
        f"{num_questions(whole.count)}: F1 {verb}{by}; {whole.num_fixed:,} were fixed and {whole.num_broken:,} broke."
    )


def _scoreboard(first: RunRecord, second: RunRecord, whole: Difference) -> dict[str, str]:
    return {
        "first": escaped(first.name),
        "second": escaped(second.name),
        "first_f1": f"{whole.first_f1:.1f}",
        "second_f1": f"{whole.second_f1:.1f}",
        "f1_change": _change(whole.second_f1 - whole.first_f1, whole.f1_interval),
        "first_exact": f"{whole.first_exact:.1f}",
        "second_exact": f"{whole.second_exact:.1f}",
        "exact_change": _change(whole.second_exact - whole.first_exact, whole.exact_interval),
    }


def _change(moved: float, interval: Interval) -> str:
    return (
        f'<b class="{direction(interval)}">{moved:+.1f}</b> '
        f'<span class="interval">{interval.low:+.1f} to {interval.high:+.1f}</span>'
    )


def _chance(first: Results, second: Results, whole: Difference) -> str:
    tested = significance(first, second)
    return filled(
        "significance.html",
        verdict=_verdict(tested),
        fixed=f"{whole.num_fixed:,}",
        broken=f"{whole.num_broken:,}",
        p_exact=_p_value(tested.exact),
        p_f1=_p_value(tested.f1),
    )


def _verdict(tested: Significance) -> str:
    real = [name for name, p in (("F1", tested.f1), ("exact match", tested.exact)) if p < _SIGNIFICANT]
    if not real:
        return "Neither difference is clearly more than chance: two equally good runs would often differ as much."
    differs = "differ" if len(real) > 1 else "differs"
    return f"In {' and in '.join(real)} the runs {differs} by more than chance explains well."


def _p_value(p: float) -> str:
    return f"p = {p:.3f}" if p >= 0.001 else "p &lt; 0.001"


def _tables(first: Results, second: Results, groupings: Sequence[Slicing]) -> str:
    tables = []
    for number, slicing in enumerate(groupings):
        members = slicing.members(second)
        groups = [
            difference(name, [first[place] for place in places], [second[place] for place in places])
            for name, places in members.items()
        ]
        links = [group_link(number, name) for name in members]
        tables.append(DIFFERENCES.html(slicing.title, slicing.column, groups, links))
    return panels(*tables)


def _questions(first: RunRecord, second: RunRecord, groupings: Sequence[Slicing], max_megabytes: float) -> str:
    pairs = zip(first.results, second.results, strict=True)
    changed = [(before, after) for before, after in pairs if change(before, after) is not Change.UNCHANGED]
    if not changed:
        return "<p>Both runs gave the same answer to every question.</p>"
    return explorer(
        ExplorerData(
            runs=[first.name, second.name],
            answered=[[before for before, _ in changed], [after for _, after in changed]],
            kinds=[change(before, after) for before, after in changed],
            ranking=list(Change),
            slicings=groupings,
            max_bytes=round(max_megabytes * BYTES),
        )
    )
