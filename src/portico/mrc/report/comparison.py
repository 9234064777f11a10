"""Runs compared: which answers were fixed or broken, and whether the differences are significant."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from portico.errors import InputError
from portico.mrc.report.explorer import BYTES, MAX_MEGABYTES, Explorer
from portico.mrc.report.figures import (
    Agreement,
    Change,
    Difference,
    Group,
    Grouping,
    Kind,
    Significance,
    agreement,
    change,
    difference,
    groupings,
    score,
    significance,
)
from portico.mrc.report.results import QuestionResult, RunRecord
from portico.mrc.report.run_page import baselines, baselines_of, group_tables, kinds_bar, num_questions, pick
from portico.mrc.report.statistics import holm
from portico.report.page import Section, compare_settings, macros, render, render_page, settings_panels
from portico.trust.disk import write_text

# By convention, a difference with a p-value below is not due to chance.
_SIGNIFICANT = 0.05

_COMPARED_FIELDS = {"question": "wording", "context": "passage", "golds": "set of accepted answers"}


def align_runs(*runs: RunRecord) -> list[RunRecord]:
    """Return the runs with the questions in the order of the first, under short names that differ.

    Raises:
        InputError: If they did not answer the same questions.
    """
    first, *others = runs
    aligned = [first, *(_reorder_like(first, other) for other in others)]
    names = _distinct_ends([run.name for run in runs])
    return [replace(run, name=name) for run, name in zip(aligned, names, strict=True)]


def _reorder_like(first: RunRecord, second: RunRecord) -> RunRecord:
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
    return second


def _distinct_ends(names: Sequence[str]) -> list[str]:
    """Return the shortest ends of the paths that differ from each other."""
    parts = [Path(name).parts for name in names]
    for count in range(1, max(map(len, parts)) + 1):
        ends = [str(Path(*its_parts[-count:])) for its_parts in parts]
        if len(set(ends)) == len(ends):
            return ends
    return [f"{name} ({ordinal(place)})" for place, name in enumerate(names)]


def ordinal(place: int) -> str:
    """Return the name of a run in the tables by its place, counted from 0: "1st"."""
    number = place + 1
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _count(ids: Iterable[str]) -> str:
    ids = sorted(ids)
    return f"{len(ids):,} (such as {ids[0]!r})" if ids else "none"


def write_comparison(
    path: str | Path, first: RunRecord, second: RunRecord, *others: RunRecord, max_megabytes: float = MAX_MEGABYTES
) -> str:
    """Write the changes from one run to others as one HTML file that needs no network and no other file.

    ``first`` is the baseline. The results of all runs have the same questions in the same order, at least one. For the
    other arguments see ``write_report``. Returns the verdict: what changed, and whether that is significant.
    """
    build_page = _page_of_several if others else _page_of_two
    page, verdict = build_page([first, second, *others], round(max_megabytes * BYTES))
    write_text(path, page)
    return verdict


def _page_of_two(runs: Sequence[RunRecord], max_bytes: int) -> tuple[str, str]:
    """Return the page of a comparison and its verdict."""
    first, second = runs
    whole = difference("", first.results, second.results)
    tested = significance(first.results, second.results)
    ways = groupings(second.results)
    parts = macros("parts.html.j2")
    templates = macros("comparison.html.j2")
    kinds = list(map(change, first.results, second.results))
    changed = [index for index, kind in enumerate(kinds) if kind is not Change.UNCHANGED]
    lead, verdict = _lead(whole), _verdict(tested)
    page = render_page(
        f"{first.name} and {second.name}",
        lead,
        templates.scoreboard(_scores(runs), whole),
        [
            Section("Fixed and broken answers", kinds_bar(kinds, list(Change), Change.UNCHANGED), "Changes"),
            Section("Statistical significance", templates.significance(verdict, whole, tested), "Significance"),
            Section(
                "Changes by group",
                group_tables(parts.difference_table, difference, ways, first.results, second.results),
                "Groups",
            ),
            Section("Changed questions", _questions(runs, kinds, changed, list(Change), ways, max_bytes), "Questions"),
            *_build_closing_sections(runs),
        ],
    )
    return page, f"{lead} {verdict}"


def _page_of_several(runs: Sequence[RunRecord], max_bytes: int) -> tuple[str, str]:
    first, *others = runs
    results = [run.results for run in runs]
    changes = _changes(first, others)
    ways = groupings(first.results)
    templates = macros("comparison.html.j2")
    kinds = [agreement(answers) for answers in zip(*results, strict=True)]
    table_of_groups = partial(templates.several_table, headings=[ordinal(place) for place in range(len(runs))])
    best = max(runs, key=lambda run: score("", run.results).f1)
    lead = (
        f"{num_questions(len(first.results))}, {len(runs)} runs: {best.name} has the best F1, "
        f"{score('', best.results).f1:.1f}; changes are from {first.name}."
    )
    verdict = _verdict_on_several(first.name, changes)
    page = render_page(
        f"{len(runs)} runs from {first.name}",
        lead,
        templates.scoreboard(_scores(runs), None),
        [
            Section("Agreement of the runs", kinds_bar(kinds, list(Agreement)), "Agreement"),
            Section(
                f"Changes from {first.name}",
                templates.changes_table(verdict, changes),
                "Changes",
            ),
            Section("F1 by group", group_tables(table_of_groups, _several, ways, *results), "Groups"),
            Section(
                "Individual questions",
                _questions(runs, kinds, range(len(kinds)), list(Agreement), ways, max_bytes),
                "Questions",
            ),
            *_build_closing_sections(runs),
        ],
    )
    return page, f"{lead} {verdict}"


def _build_closing_sections(runs: Sequence[RunRecord]) -> list[Section]:
    settings = compare_settings(*(run.settings for run in runs))
    return [
        Section("Different settings", settings_panels(settings), "Settings"),
        Section("How to read these figures", render("methods.html.j2"), "Methods"),
    ]


class _Score(NamedTuple):
    """A row of the scoreboard: the scores of a run, and the scores of trivial answers to the same questions."""

    place: str
    group: Group
    f1_baselines: dict[str, float]
    exact_baselines: dict[str, float]


def _scores(runs: Sequence[RunRecord]) -> list[_Score]:
    rows = []
    for place, run in enumerate(runs):
        trivial = baselines(run)
        exact = baselines_of(trivial, "exact_match", "exact")
        rows.append(_Score(ordinal(place), score(run.name, run.results), baselines_of(trivial, "f1"), exact))
    return rows


class _ChangeOfRun(NamedTuple):
    """What changed from the first run to another; the p-values are adjusted for the number of runs."""

    name: str
    whole: Difference
    tested: Significance


def _changes(first: RunRecord, others: Sequence[RunRecord]) -> list[_ChangeOfRun]:
    tested = [significance(first.results, other.results) for other in others]
    exact, f1 = holm([test.exact for test in tested]), holm([test.f1 for test in tested])
    return [
        _ChangeOfRun(other.name, difference("", first.results, other.results), Significance(*adjusted))
        for other, *adjusted in zip(others, exact, f1, strict=True)
    ]


class _Several(NamedTuple):
    """F1 of a group of questions in the first run, and its difference in each of the others."""

    name: str
    num_questions: int
    first_f1: float
    others: list[Difference]


def _several(name: str, first: Sequence[QuestionResult], *others: Sequence[QuestionResult]) -> _Several:
    differences = [difference(name, first, other) for other in others]
    return _Several(name, len(first), differences[0].first_f1, differences)


def _lead(whole: Difference) -> str:
    moved = whole.second_f1 - whole.first_f1
    f1 = f"{whole.second_f1:.1f}"
    change = f"is unchanged at {f1}"
    if moved:
        change = f"{'rose' if moved > 0 else 'fell'} by {abs(moved):.1f} to {f1}"
    count = num_questions(whole.num_questions)
    return f"{count}: F1 {change}; {whole.num_fixed:,} answers fixed, {whole.num_broken:,} broken."


def _verdict(tested: Significance) -> str:
    real = [name for name, p in (("F1", tested.f1), ("exact match", tested.exact)) if p < _SIGNIFICANT]
    if not real:
        return "Neither difference is significant: two equally good runs would often differ by as much."
    noun, verb = ("differences", "are") if len(real) > 1 else ("difference", "is")
    return f"The {noun} in {' and '.join(real)} {verb} statistically significant (p < {_SIGNIFICANT})."


def _verdict_on_several(first: str, changes: Sequence[_ChangeOfRun]) -> str:
    better = [row.name for row in changes if row.tested.f1 < _SIGNIFICANT and row.whole.f1_interval.low > 0]
    worse = [row.name for row in changes if row.tested.f1 < _SIGNIFICANT and row.whole.f1_interval.high < 0]
    if not (better or worse):
        return f"No F1 differs significantly from the F1 of {first}: equally good runs would often differ by as much."
    runs = {"better": better, "worse": worse}
    parts = [f"{how}: {', '.join(names)}" for how, names in runs.items() if names]
    return f"Runs whose F1 differs significantly from the F1 of {first} (p < {_SIGNIFICANT}): {'; '.join(parts)}."


def _questions(
    runs: Sequence[RunRecord],
    kinds: Sequence[Kind],
    shown: Sequence[int],
    ranking: Sequence[Kind],
    ways: Sequence[Grouping],
    max_bytes: int,
) -> Markup:
    if not shown:
        return Markup("<p>Both runs gave the same answer to every question.</p>")
    return Explorer(
        runs=[run.name for run in runs],
        answered=[pick(run.results, shown) for run in runs],
        kinds=[kinds[index] for index in shown],
        ranking=ranking,
        groupings=ways,
        max_bytes=max_bytes,
    ).html()
