"""Two runs compared: which answers were fixed or broken, and whether the difference is significant."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from portico.errors import InputError
from portico.mrc.report.explorer import BYTES, MAX_MEGABYTES, Explorer
from portico.mrc.report.figures import (
    Change,
    Difference,
    Grouping,
    Significance,
    change,
    count_kinds,
    difference,
    groupings,
    significance,
)
from portico.mrc.report.results import RunRecord
from portico.mrc.report.run_page import group_tables, num_questions, picked
from portico.report.page import Section, differing_settings, macros, render, render_page, settings_panels, write_text

# By convention, a difference with a p-value below is not due to chance.
_SIGNIFICANT = 0.05

_COMPARED_FIELDS = {"question": "wording", "context": "passage", "golds": "set of accepted answers"}


def align_runs(first: RunRecord, second: RunRecord) -> tuple[RunRecord, RunRecord]:
    """Return both runs with the questions in the order of the first, under short names that differ.

    Raises:
        InputError: If they did not answer the same questions.
    """
    of_second = {result.id: result for result in second.results}
    ids = [result.id for result in first.results]
    only_first = [key for key in ids if key not in of_second]
    only_second = of_second.keys() - set(ids)
    if only_first or only_second or not ids:
        raise InputError(
            f"{first.name} and {second.name} were evaluated on different questions: "
            f"{len(ids) - len(only_first):,} are in both, {_count(only_first)} only in the first and "
            f"{_count(only_second)} only in the second; evaluate both on the same data, with at least one question."
        )
    second = replace(second, results=[of_second[key] for key in ids])
    for before, after in zip(first.results, second.results, strict=True):
        for field, description in _COMPARED_FIELDS.items():
            if getattr(before, field) != getattr(after, field):
                raise InputError(
                    f"{first.name} and {second.name} were evaluated on different data: question {before.id!r} "
                    f"has a different {description} in each; evaluate both on the same data."
                )
    names = _distinct_ends(first.name, second.name)
    return replace(first, name=names[0]), replace(second, name=names[1])


def _distinct_ends(first: str, second: str) -> tuple[str, str]:
    """Return the last parts of two paths, as few as make them differ."""
    parts, other_parts = Path(first).parts, Path(second).parts
    for count in range(1, min(len(parts), len(other_parts)) + 1):
        if parts[-count] != other_parts[-count]:
            return "/".join(parts[-count:]), "/".join(other_parts[-count:])
    return f"{first} (first)", f"{second} (second)"


def _count(ids: Iterable[str]) -> str:
    ids = sorted(ids)
    return f"{len(ids):,} (such as {ids[0]!r})" if ids else "none"


def write_comparison(
    path: str | Path, first: RunRecord, second: RunRecord, *, max_megabytes: float = MAX_MEGABYTES
) -> None:
    """Write what changed from one run to another: one HTML file that needs no network and no other file.

    ``first`` is the baseline; the results of both are of the same questions in the same order, at least one. The
    other arguments are those of `write_report`.
    """
    write_text(path, comparison_page(first, second, max_megabytes=max_megabytes))


def comparison_page(first: RunRecord, second: RunRecord, *, max_megabytes: float = MAX_MEGABYTES) -> str:
    """Return what changed from one run to another as one HTML page; the arguments are those of `write_comparison`."""
    whole = difference("", first.results, second.results)
    tested = significance(first.results, second.results)
    ways = groupings(second.results)
    parts, templates = macros("parts.html.j2"), macros("comparison.html.j2")
    changes = count_kinds(map(change, first.results, second.results))
    tables = group_tables(parts.difference_table, difference, ways, first.results, second.results)
    settings = differing_settings(first.settings, second.settings)
    significances = templates.significance(_verdict(tested), whole, tested)
    return render_page(
        f"{first.name} and {second.name}",
        _lead(whole),
        templates.scoreboard(first.name, second.name, whole),
        [
            Section("Fixed and broken answers", parts.share_bar(changes), "Changes"),
            Section("Statistical significance", significances, "Significance"),
            Section("Changes by group", tables, "Groups"),
            Section("Changed questions", _questions(first, second, ways, max_megabytes), "Questions"),
            Section("Different settings", settings_panels(settings), "Settings"),
            Section("How to read these figures", render("methods.html.j2"), "Methods"),
        ],
    )


def _lead(whole: Difference) -> str:
    moved = whole.second_f1 - whole.first_f1
    verb = "rose" if moved > 0 else "fell" if moved < 0 else "is unchanged"
    by = f" by {abs(moved):.1f} to {whole.second_f1:.1f}" if moved else f" at {whole.second_f1:.1f}"
    count = num_questions(whole.num_questions)
    return f"{count}: F1 {verb}{by}; {whole.num_fixed:,} answers fixed, {whole.num_broken:,} broken."


def _verdict(tested: Significance) -> str:
    real = [name for name, p in (("F1", tested.f1), ("exact match", tested.exact)) if p < _SIGNIFICANT]
    if not real:
        return "Neither difference is significant: two equally good runs would often differ by as much."
    noun, verb = ("differences", "are") if len(real) > 1 else ("difference", "is")
    return f"The {noun} in {' and '.join(real)} {verb} statistically significant (p < {_SIGNIFICANT})."


def _questions(first: RunRecord, second: RunRecord, ways: Sequence[Grouping], max_megabytes: float) -> Markup:
    changes = list(map(change, first.results, second.results))
    changed = [index for index, kind in enumerate(changes) if kind is not Change.UNCHANGED]
    if not changed:
        return Markup("<p>Both runs gave the same answer to every question.</p>")
    return Explorer(
        runs=[first.name, second.name],
        answered=[picked(first.results, changed), picked(second.results, changed)],
        kinds=[changes[index] for index in changed],
        ranking=list(Change),
        groupings=ways,
        max_bytes=round(max_megabytes * BYTES),
    ).html()
