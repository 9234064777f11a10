"""The explorer of questions: its controls as HTML, and the data that a script fills it with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from portico.mrc.report.html.assets import filled
from portico.mrc.report.html.explorer_data import ExplorerData, Kind
from portico.mrc.report.html.markup import escaped

MAX_MEGABYTES = 20.0
BYTES = 1_000_000

_ORDERS = {
    "worst": "lowest F1 first",
    "sure": "most confident first",
    "unsure": "least confident first",
    "long": "longest passage first",
    "given": "as in the data",
}
_ORDERS_OF_CHANGES = {"moved": "largest change first", **_ORDERS}


def explorer(data: ExplorerData) -> str:
    """Return the explorer, or nothing if there is no question."""
    if not data.kinds:
        return ""
    json, left_out = data.fitted()
    return filled(
        "explorer.html",
        filters=_filters(data.kinds, data.ranking),
        groups=_groups(data),
        orders="".join(
            f'<option value="{value}">{label}</option>'
            for value, label in (_ORDERS_OF_CHANGES if len(data.runs) > 1 else _ORDERS).items()
        ),
        legend=_legend(data.runs),
        left_out=_left_out(left_out, len(data.kinds), data.max_bytes),
        data=json,
    )


def group_link(slicing: int, name: str) -> str:
    """Return where the questions of a group are shown."""
    return f"#g={quote(_group_value(slicing, name), safe='')}"


def _group_value(slicing: int, name: str) -> str:
    return f"{slicing}.{name}"


def _filters(kinds: Sequence[Kind], ranking: Sequence[Kind]) -> str:
    counts = Counter(kinds)
    return "".join(
        f'<button type="button" aria-pressed="false" class="{kind.css_class}" data-kind="{number}" '
        f'title="{escaped(kind.meaning)}">{kind.label} <span>{counts[kind]:,}</span></button>'
        for number, kind in enumerate(ranking)
        if counts[kind]
    )


def _groups(data: ExplorerData) -> str:
    return "".join(
        f'<optgroup label="{escaped(slicing.title)}">'
        + "".join(
            f'<option value="{escaped(_group_value(number, name))}">{escaped(name)}</option>' for name in members
        )
        + "</optgroup>"
        for number, (slicing, members) in enumerate(zip(data.slicings, data.groups, strict=True))
    )


def _legend(runs: Sequence[str]) -> str:
    expected = '<mark class="gold">expected</mark>'
    if len(runs) == 1:
        return f'{expected}, <mark class="predicted">answered</mark>, <mark class="gold predicted">both</mark>'
    first, second = (f"<bdi>{escaped(run)}</bdi>" for run in runs)
    return (
        f'{expected}, <mark class="predicted">answered by {first}</mark>, '
        f'<mark class="second">by {second}</mark>; marks add up'
    )


def _left_out(left_out: Mapping[Kind, int], total: int, max_bytes: int) -> str:
    if not left_out:
        return ""
    parts = ", ".join(f"{count:,} {kind.label}" for kind, count in left_out.items())
    return (
        f'<p class="left-out">{sum(left_out.values()):,} of {total:,} questions are left out here ({parts}), to keep '
        f"this file below {max_bytes / BYTES:g} MB; the figures above count all of them. "
        "<code>portico-report --max-megabytes</code> makes room for more.</p>"
    )
