"""Whether two runs can be compared."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from portico.errors import InputError
from portico.mrc.report.record import RunRecord

_NAMES = {"question": "wording", "context": "passage", "golds": "set of accepted answers"}


def aligned(first: RunRecord, second: RunRecord) -> tuple[RunRecord, RunRecord]:
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
            f"{_count(only_second)} only in the second; evaluate both on the same data, one question at least."
        )
    second = replace(second, results=[of_second[key] for key in ids])
    _check_same_data(first, second)
    names = _distinct_ends(first.name, second.name)
    return replace(first, name=names[0]), replace(second, name=names[1])


def _distinct_ends(first: str, second: str) -> tuple[str, str]:
    """Return as few of the last parts of two paths as tell them apart."""
    ends: tuple[list[str], list[str]] = ([], [])
    for pair in zip(reversed(Path(first).parts), reversed(Path(second).parts), strict=False):
        for end, part in zip(ends, pair, strict=True):
            end.insert(0, part)
        if pair[0] != pair[1]:
            return "/".join(ends[0]), "/".join(ends[1])
    return f"{first} (first)", f"{second} (second)"


def _count(ids: Iterable[str]) -> str:
    ids = sorted(ids)
    return f"{len(ids):,} ({ids[0]!r} for one)" if ids else "none"


def _check_same_data(first: RunRecord, second: RunRecord) -> None:
    for before, after in zip(first.results, second.results, strict=True):
        for name in ("question", "context", "golds"):
            if getattr(before, name) != getattr(after, name):
                raise InputError(
                    f"{first.name} and {second.name} were evaluated on different data: the question {before.id!r} "
                    f"has another {_NAMES[name]} in each; evaluate both on the same data."
                )
